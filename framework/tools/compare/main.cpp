// `vernier compare`: trains configurations with the same seeds, in turn, and says which differences that shows.
#include <fcntl.h>
#include <sys/file.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <iostream>

#include "comparison.h"
#include "rounds.h"
#include "tools/common/page/comparison_view.h"
#include "tools/common/page/report_page.h"
#include "tools/common/verb.h"

namespace {

namespace fs = std::filesystem;
namespace po = boost::program_options;
using Json = nlohmann::ordered_json;
using vernier::Refused;
using Words = std::vector<std::string>;

constexpr const char* usage = R"(usage: vernier compare FILE... [--sweep KEY=VALUES]... [--precision] [OPTION]...
       vernier compare RUN... [--json]

Trains each TOML file with the same seeds, one run at a time and in turn, and prints speed, memory and losses with their
spread. A difference from the first candidate is claimed only where the seeds show it. Of folders of runs that are there
it trains nothing. After Ctrl-C it prints what is done, and the same command goes on.

  --sweep KEY=VALUES   a candidate for each value: precision=fp32,bf16, optimizer.learning_rate=1e-3,3e-3; a plugin's
                       name needs no .use; may be repeated, for every combination; at most 32 candidates
  --precision          six candidates: fp32, fp16 unscaled, fp16 mixed, bf16, fp16 mixed in 4 micro-batches, fp8
  --base FILE          is merged before each FILE, so that these may be overlays; may be repeated
  --set KEY=VALUE      sets one value in all candidates; may be repeated
  --seeds NUMBER       runs of each candidate, with run.seed from 1 on; 3, if not given; a verdict needs 3
  --steps NUMBER       run.steps of all candidates
  --output FOLDER      runs/compare, if not given; gets compare.json, compare.csv, compare.html, and the runs
  --plugin-path FOLDER as of vernier train
  --json               prints compare.json instead of the table
  --quiet              prints no line for each run
)";

constexpr int nothing_trained = 4;

int number_in(const po::variables_map& given, const char* option, int most) {
  const int number = given[option].as<int>();
  if (number >= 1 && number <= most) return number;
  throw Refused(std::string("--") + option + " is from 1 to " + std::to_string(most));
}

vernier::Plan read_plan(const po::variables_map& given) {
  vernier::Plan plan;
  plan.candidates = vernier::candidates_of({.files = vernier::words_of(given),
                                            .bases = vernier::words_in(given, "base"),
                                            .sweeps = vernier::words_in(given, "sweep"),
                                            .precisions = given.count("precision") != 0});
  plan.common.sets = vernier::words_in(given, "set");
  if (given.count("steps") != 0) {
    const auto steps = number_in(given, "steps", 1'000'000'000);
    plan.common.sets.insert(plan.common.sets.end(), {"run.steps=" + std::to_string(steps), "run.epochs=0"});
  }
  for (const auto& candidate : plan.candidates) {
    Words all = plan.common.sets;
    all.insert(all.end(), candidate.sets.begin(), candidate.sets.end());
    for (const char* own : {"run.seed", "run.output"}) {
      if (std::ranges::any_of(all, [&](const auto& set) { return set.starts_with(std::string(own) + "="); })) {
        throw Refused(std::string(own) + " is set by compare itself; see --seeds and --output");
      }
    }
  }
  plan.common.plugin_paths = vernier::words_in(given, "plugin-path");
  plan.folder = given["output"].as<std::string>();
  plan.seeds = number_in(given, "seeds", 100);
  plan.is_quiet = given.count("quiet") != 0;
  return plan;
}

// One comparison at a time writes a folder. The lock lasts until this process ends.
void lock(const fs::path& folder) {
  std::error_code trouble;
  fs::create_directories(folder, trouble);
  const auto path = folder / ".compare.lock";
  const int file = ::open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600);
  if (file < 0) throw Refused(path.string() + ": " + std::strerror(errno) + "; choose another --output");
  if (::flock(file, LOCK_EX | LOCK_NB) == 0 || errno != EWOULDBLOCK) return;
  throw Refused(folder.string() + ": another `vernier compare` writes it; wait for it, or choose another --output");
}

// The results of another comparison would be written over.
void refuse_folder_of_another(const vernier::Plan& plan) {
  if (!vernier::is_comparison(plan.folder)) return;
  const auto before = vernier::read_comparison(plan.folder);
  for (const auto& candidate : before["candidates"]) {
    const std::string name = candidate["name"];
    if (std::ranges::find(plan.candidates, name, &vernier::Candidate::name) != plan.candidates.end()) continue;
    throw Refused(plan.folder.string() + ": another comparison is there, with the candidate " + name +
                  "; name another folder with --output");
  }
}

bool write_files(const Json& comparison, const fs::path& folder) {
  return vernier::write_or_complain(folder / "compare.json",
                                    comparison.dump(2, ' ', false, Json::error_handler_t::replace) + "\n") &&
         vernier::write_or_complain(folder / "compare.csv", vernier::csv_of(comparison)) &&
         vernier::write_or_complain(folder / "compare.html",
                                    vernier::report_page(vernier::runs_of(comparison, folder), {comparison}));
}

void print(const Json& comparison, bool as_json) {
  std::cout << (as_json ? comparison.dump(2, ' ', false, Json::error_handler_t::replace) + "\n"
                        : text_of(vernier::view_of(comparison)))
            << std::flush;
}

bool has_a_result(const Json& comparison) {
  return std::ranges::any_of(comparison["candidates"],
                             [](const Json& each) { return !each["measures"]["samples_per_second"].is_null(); });
}

int train_and_compare(const po::variables_map& given) {
  const auto plan = read_plan(given);
  lock(plan.folder);
  refuse_folder_of_another(plan);
  vernier::Children children(vernier::program_beside_this());
  check_configurations(plan, children);
  const auto comparison = vernier::comparison_of(train_rounds(plan, children), plan.folder);
  const bool is_written = write_files(comparison, plan.folder), as_json = given.count("json") != 0;
  print(comparison, as_json);
  if (!is_written) return nothing_trained;
  if (!as_json)
    std::cout << "\nwrote compare.json, compare.csv and compare.html in " << plan.folder.string() << std::endl;
  if (const int signal = children.stopped_by(); signal != 0) {
    std::cerr << "vernier: stopped; the same command goes on with what is missing\n";
    return 128 + signal;
  }
  return has_a_result(comparison) ? 0 : nothing_trained;
}

int compare_runs(const po::variables_map& given) {
  for (const char* option : {"sweep", "precision", "base", "set", "seeds", "steps", "output", "plugin-path"}) {
    if (given.count(option) == 0 || given[option].defaulted()) continue;
    throw Refused(std::string("--") + option + " is for TOML files; runs that are there are not trained again");
  }
  const auto words = vernier::words_of(given);
  const bool as_json = given.count("json") != 0;
  if (words.size() == 1 && vernier::is_comparison(words[0])) {
    print(vernier::read_comparison(words[0]), as_json);
    return 0;
  }
  std::vector<vernier::Row> rows;
  for (const auto& word : words) {
    const auto seed = vernier::read_run(word).summary.value("seed", std::int64_t{0});
    rows.push_back({word, {{seed, word, "", ""}}});
  }
  print(vernier::comparison_of(rows, ""), as_json);
  return 0;
}

int compare(const po::variables_map& given) {
  const auto words = vernier::words_of(given);
  if (words.empty())
    throw Refused("name TOML files, as in `vernier compare a.toml b.toml`; see vernier compare --help");
  const auto is_folder = [](const std::string& word) { return fs::is_directory(word); };
  const auto folders = std::ranges::count_if(words, is_folder);
  if (folders == 0) return train_and_compare(given);
  if (folders == std::ssize(words)) return compare_runs(given);
  throw Refused(*std::ranges::find_if(words, is_folder) +
                " is a folder, and others are files: name TOML files to train, or folders of runs that are there");
}

}  // namespace

int main(int argc, char** argv) {
  const auto words = [] { return po::value<Words>()->composing(); };
  po::options_description known;
  known.add_options()("sweep", words(), "")("precision", "")("base", words(), "")("set", words(), "")(
      "seeds", po::value<int>()->default_value(3))("steps", po::value<int>())(
      "output", po::value<std::string>()->default_value("runs/compare"))("plugin-path", words(), "")("json", "")(
      "quiet", "");
  return vernier::call_verb({"compare", usage, known, compare}, argc, argv);
}
