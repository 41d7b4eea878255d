// Plugins of the kinds that people have written out of tree: short, with nothing but the contract and the toolkit.
#include <doctest/doctest.h>

#include <algorithm>
#include <set>
#include <string>

#include "long_form.h"
#include "small_run.h"
#include "thrown.h"
#include "tools/check_plugin/laws.h"

namespace strangers_test {

using vernier::Result;
using vernier::Subject;

namespace {

struct Stranger {
  const char *role, *name;
};

constexpr Stranger strangers[] = {{"accumulation", "noise_grow"},
                                  {"callback", "agc"},
                                  {"callback", "grokfast"},
                                  {"callback", "lookahead"},
                                  {"callback", "rewind_rise"},
                                  {"checkpoint", "archive"},
                                  {"monitor", "tcp"},
                                  {"optimizer", "ademamix"},
                                  {"optimizer", "lookahead_of"},
                                  {"optimizer", "sophia_h"},
                                  {"optimizer", "schedule_free"},
                                  {"precision", "settled_fp16"},
                                  {"scaler", "als"},
                                  {"task", "gan"},
                                  {"task", "ragged"}};

// A sanitizer has a malloc of its own, which the law of growth cannot read; a machine may have no GPU; and an optimizer
// need not update each parameter alone.
const std::set<std::string> may_skip = {"does not grow", "does not wait for the device",
                                        "updates each parameter alone, if it says so"};

// Tries all laws in one process. Returns "law: what is wrong" for each that is broken, or skipped without a reason.
std::string broken_laws(const Subject& subject) {
  const auto result = vernier::ForkedCall([&] {
                        std::string all;
                        for (const auto& law : vernier::laws()) {
                          if (!vernier::applies(law, subject)) continue;
                          try {
                            law.check(subject);
                          } catch (const vernier::LawSkipped& skipped) {
                            if (may_skip.count(law.name) == 0)
                              all += std::string(law.name) + ": skipped: " + skipped.what() + '\n';
                          } catch (...) {
                            all += std::string(law.name) + ": " + vernier::caught().message + '\n';
                          }
                        }
                        return all;
                      }).wait();
  return result.text;
}

Subject subject_of(const Stranger& stranger) {
  return {plugins_and_fixtures(), stranger.role, stranger.name, stranger.name, {}, vernier::small_base()};
}

}  // namespace

// All laws of a plugin take ten seconds.
TEST_CASE("strangers: fifteen plugins of at most 60 lines each keep the laws") {
  for (const auto& stranger : strangers) {
    CAPTURE(std::string(stranger.name));
    if (is_long()) CHECK(broken_laws(subject_of(stranger)) == "");
    const auto source =
        read_text(VERNIER_SOURCE_DIR "/tests/fixtures/strangers/" + std::string(stranger.name) + ".cpp");
    CHECK(std::ranges::count(source, '\n') <= 60);
  }
}

TEST_CASE("strangers: all of them in one run resume, alone and on two ranks" * doctest::test_suite("distributed")) {
  auto subject = subject_of({"optimizer", "ademamix"});
  subject.base =
      from_toml({vernier::to_toml(subject.base),
                 "[task]\nuse = 'ragged'\n[accumulation]\nuse = 'noise_grow'\n[scaler]\nuse = 'als'\n"
                 "[checkpoint]\nuse = 'archive'\n[[callback]]\nuse = 'grokfast'\n[[callback]]\nuse = 'agc'\n"
                 "[[callback]]\nuse = 'lookahead'\n[[callback]]\nuse = 'rewind_rise'\n[[monitor]]\nuse = 'tcp'\n"});
  for (auto* law : {&vernier::check_resumes, &vernier::check_two_ranks}) {
    const auto result = vernier::ForkedCall([&] {
                          (*law)(subject);
                          return std::string("resumed");
                        }).wait();
    CHECK_MESSAGE(result.text == "resumed", result.text);
  }
}

TEST_CASE("strangers: two optimizers by TOML alone train a GAN and resume, bit for bit") {
  auto subject = subject_of({"task", "gan"});
  subject.base = from_toml({vernier::to_toml(subject.base),
                            "[optimizer]\nuse = 'adamw'\n[[optimizer.group]]\nmatch = 'discriminator.*'\nuse = "
                            "'lookahead_of'\ninner = {use = 'sgd', learning_rate = 0.1, momentum = 0.5}\n"});
  const auto result = vernier::ForkedCall([&] {
                        vernier::check_resumes(subject);
                        return std::string("resumed");
                      }).wait();
  CHECK_MESSAGE(result.text == "resumed", result.text);
}

}  // namespace strangers_test
