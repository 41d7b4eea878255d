// Plugins with one mistake each, and the laws that catch them: tests/contract/mutants.
#include <doctest/doctest.h>

#include <algorithm>
#include <fstream>
#include <map>
#include <set>
#include <sstream>
#include <string>
#include <vector>

#include "long_form.h"
#include "small_run.h"
#include "tools/check_plugin/laws.h"

namespace mutants_test {

using vernier::Law;
using vernier::Result;
using vernier::Subject;

namespace {

struct Mutant {
  std::string role, word, what, caught_by;
};

std::vector<Mutant> mutants() {
  std::vector<Mutant> all;
  std::ifstream in(VERNIER_SOURCE_DIR "/tests/contract/mutants/mutants.tsv");
  std::string line;
  std::getline(in, line);
  while (std::getline(in, line)) {
    std::istringstream words(line);
    Mutant each;
    std::getline(words, each.role, '\t');
    std::getline(words, each.word, '\t');
    std::getline(words, each.what, '\t');
    std::getline(words, each.caught_by, '\t');
    all.push_back(each);
  }
  return all;
}

Subject subject_of(const std::string& role, const std::string& word = "none") {
  Subject subject{plugins_and_fixtures(), role, "mutant", "mutant", {}, vernier::small_base()};
  vernier::change(subject, {"mutant=" + word});
  return subject;
}

const Law& law_of(const std::string& name) {
  const auto found = std::ranges::find_if(vernier::laws(), [&](const auto& law) { return law.name == name; });
  REQUIRE_MESSAGE(found != vernier::laws().end(), "there is no law \"", name, "\"");
  return *found;
}

Result try_law(const Law& law, const Subject& subject) {
  return vernier::ForkedCall(
             [&] {
               law.check(subject);
               return std::string();
             },
             300)
      .wait();
}

constexpr std::pair<const char*, Result::Kind> verdicts[] = {
    {"declined: ", Result::Kind::declined}, {"skipped: ", Result::Kind::skipped}, {"passes: ", Result::Kind::ok}};

}  // namespace

TEST_CASE("mutants: each of them is caught by its law, or listed with the reason why it is not") {
  const auto all = mutants();
  CHECK(all.size() >= 60);
  for (const auto& [role, word, what, caught_by] : all) {
    if (caught_by.starts_with("none: ")) continue;
    auto law = caught_by;
    auto expected = Result::Kind::failed;
    for (const auto& [prefix, kind] : verdicts) {
      if (!caught_by.starts_with(prefix)) continue;
      expected = kind;
      law = caught_by.substr(std::string(prefix).size());
    }
    const auto result = try_law(law_of(law), subject_of(role, word));
    CHECK_MESSAGE(result.kind == expected, role, " that ", word, ", ", law, ": ", result.text);
    const bool is_of_the_law = !result.text.starts_with("the process ") && !result.text.starts_with("it took more");
    CHECK_MESSAGE(is_of_the_law, role, " that ", word, ": ", result.text);
    if (std::getenv("VERNIER_SHOW_MUTANTS") != nullptr) MESSAGE(role, " ", word, ": ", result.text);
  }
}

// Some laws take seconds, and are no other for these plugins than for those of other tests.
TEST_CASE("mutants: without a mistake each of these plugins keeps all laws") {
  const std::set<std::string> long_ones = {"does not grow", "trains on two ranks"};
  for (const std::string role :
       {"accumulation", "callback", "checkpoint", "monitor", "optimizer", "precision", "scaler", "task"}) {
    const auto subject = subject_of(role);
    for (const auto& law : vernier::laws()) {
      if (!vernier::applies(law, subject) || (!is_long() && long_ones.contains(law.name))) continue;
      const auto result = try_law(law, subject);
      const bool is_kept = result.kind == Result::Kind::ok || std::string(law.name) == "does not wait for the device";
      CHECK_MESSAGE(is_kept, role, ", ", std::string(law.name), ": ", result.text);
    }
  }
}

}  // namespace mutants_test
