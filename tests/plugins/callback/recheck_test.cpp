// Steps that are computed twice, by callback/recheck.
#include <doctest/doctest.h>

#include <random>

#include "flight.h"
#include "log_lines.h"
#include "long_form.h"
#include "thrown.h"

namespace recheck_test {

using vernier::Event;
using vernier::Run;

namespace {

std::string recheck(int every, const std::string& on_fault) {
  return "[[callback]]\nuse = 'recheck'\nevery = " + std::to_string(every) + "\non_fault = '" + on_fault + "'\n";
}

std::string flip(const std::string& where, const std::string& layer, int step, int bit, int seed = 0) {
  return "[[callback]]\nuse = 'inject'\nwhat = 'bit_flip'\ntransient = true\nwhere = '" + where + "'\n" +
         (layer.empty() ? "" : "layer = '" + layer + "'\n") + "at_step = " + std::to_string(step) +
         "\nbit = " + std::to_string(bit) + "\n" + (where == "loss" ? "" : "seed = " + std::to_string(seed) + "\n");
}

struct Seen {
  std::string digest;
  Thrown thrown;
  std::vector<vernier::Notice> notices;
  std::int64_t steps = 0;
};

Seen train(const std::vector<std::string>& texts, const std::function<void(SmallRun&)>& before = nullptr,
           int threads = 1) {
  const NoLog no_log;
  const TemporaryFolder output;
  std::string all;
  for (const auto& text : texts) all += text;
  SmallRun run(from_toml({all}), output.path().string(), built_plugins(), threads);
  Seen seen;
  run.on(Event::StepEnd, [&](Run& now) {
    for (const auto& notice : now.notices) {
      if (notice.name == "recheck") seen.notices.push_back(notice);
    }
  });
  if (before) before(run);
  seen.thrown = thrown_by([&] { run.train(); });
  seen.digest = run.digest();
  seen.steps = run.run.step;
  return seen;
}

}  // namespace

TEST_CASE("recheck: a clean run has no report and the same bits" * doctest::test_suite("text")) {
  const TemporaryFolder folder;
  for (const auto& task : {flight::mlp(30), flight::gpt(folder, 12, "dropout = 0.1\n"), flight::images(folder, 12)}) {
    for (const auto& precision : flight::precisions) {
      for (const int threads : {1, 2}) {
        const auto plain = train({task, precision}, nullptr, threads);
        const auto checked = train({task, precision, recheck(1, "stop")}, nullptr, threads);
        CHECK(checked.thrown == Thrown{});
        CHECK(checked.notices.empty());
        CHECK(checked.digest == plain.digest);
      }
    }
  }
}

TEST_CASE("recheck: a bit that flips once is found and placed, and the repeat has the bits of a clean run") {
  struct Case {
    std::string where, layer, place;
  };
  const std::vector<Case> cases = {{"activation", "layers.0", "layers.0"},
                                   {"activation", "layers.1", "layers.1"},
                                   {"gradient", "layers.0", "layers.0.weight"},
                                   {"gradient", "layers.1", "layers.1.weight"},
                                   {"activation_gradient", "layers.0", "layers.0"},
                                   {"loss", "", ""},
                                   {"input", "", "layers.0"}};
  const int trials = is_long() ? 100 : 14;
  std::mt19937 random(3);
  int found = 0, harmless = 0;
  for (int trial = 0; trial < trials; ++trial) {
    const auto& [where, layer, place] = cases[static_cast<std::size_t>(trial) % cases.size()];
    const int step = 2 + static_cast<int>(random() % 7), bit = static_cast<int>(random() % 32);
    CAPTURE(where);
    CAPTURE(layer);
    CAPTURE(bit);
    const auto task = flight::mlp(9);
    const auto fault = flip(where, layer, step, bit, trial), clean = train({task}).digest;
    const auto seen = train({task, recheck(1, "repeat"), fault});
    if (seen.notices.empty()) {  // nothing depends on the bit, as in a gradient of zero behind a ReLU
      CHECK(train({task, fault}).digest == clean);
      ++harmless;
      continue;
    }
    REQUIRE(seen.notices.size() == 1);
    const auto& notice = seen.notices[0];
    CAPTURE(notice.text());
    CHECK(flight::told(notice, "step") == std::to_string(step));
    CHECK(flight::told(notice, "layer").starts_with(place));
    CHECK(flight::told(notice, "odd") == "step");
    CHECK(seen.digest == clean);
    found += flight::told(notice, "layer").starts_with(place) ? 1 : 0;
  }
  CHECK(found + harmless == trials);
  CHECK(harmless < trials / 5);
}

TEST_CASE("recheck: on_fault says what becomes of the run") {
  const auto task = flight::mlp(6), fault = flip("gradient", "layers.0", 4, 30);
  const auto clean = train({task});
  const auto reported = train({task, recheck(2, "report"), fault});
  CHECK(reported.notices.size() == 1);
  CHECK(reported.digest != clean.digest);
  const auto stopped = train({task, recheck(2, "stop"), fault});
  CHECK(stopped.thrown.text.find("step 4 was computed 3 times") != std::string::npos);
  CHECK(stopped.steps == 3);
  CHECK(train({task, recheck(3, "stop"), fault}).thrown == Thrown{});  // step 4 is not checked
}

TEST_CASE("recheck: a plugin that does not compute the same twice is named, and nothing is checked any more") {
  const auto task = flight::mlp(6);
  const auto count = [calls = std::make_shared<int>(0)](SmallRun& run) {
    run.on(Event::LossReady, [calls](Run& now) {
      now.micro_batch_loss = now.micro_batch_loss * (1 + 1e-3 * static_cast<double>(++*calls));
    });
  };
  const auto seen = train({task, recheck(1, "report")}, count);
  REQUIRE(seen.notices.size() == 1);
  CHECK(flight::told(seen.notices[0], "step") == "1");
  CHECK(seen.notices[0].sentence.find("is not deterministic") != std::string::npos);
  const auto stopped = train({task, recheck(1, "stop")}, count);
  CHECK(stopped.thrown.text.find("is not deterministic") != std::string::npos);
}

}  // namespace recheck_test
