// With the program's own tasks and optimizers; recovery_test.cpp has runs that are followed by hand.
#include <doctest/doctest.h>

#include <cmath>
#include <csignal>
#include <fstream>
#include <random>
#include <sstream>

#include "log_lines.h"
#include "small_run.h"
#include "thrown.h"

namespace recovery_run_test {

using vernier::Event;
using vernier::Run;

namespace {

using Texts = std::vector<std::string>;

constexpr const char* mlp = R"(
[run]
steps = 12
[task]
use = "mlp"
samples = 64
[optimizer]
use = "adamw"
[checkpoint]
use = "none"
)";

struct Ended {
  std::string digest, precision;
  Thrown thrown;
  Texts told;
};

Ended train(const Texts& texts, const std::function<void(SmallRun&)>& before = nullptr) {
  const TemporaryFolder output;
  const NoLog no_log;
  std::string more;
  for (const auto& text : texts) more += text;
  SmallRun run(from_toml({mlp, more}), output.path().string());
  Ended ended;
  run.on(Event::StepEnd, [&](Run& now) {
    for (const auto& notice : now.notices) ended.told.push_back(notice.text());
  });
  if (before) before(run);
  ended.thrown = thrown_by([&] { run.train(); });
  ended.digest = run.digest();
  ended.precision = run.wiring->precision->id();
  return ended;
}

const std::string fp16 = "[precision]\nuse = 'fp16'\n[scaler]\nuse = 'dynamic'\ninit_scale = 1024\n";
const std::string to_bf16 = "to = {precision = {use = 'bf16'}, scaler = {use = 'none'}}\n";

std::string inject(const std::string& options) {
  return "[[callback]]\nuse = 'inject'\nwhere = 'loss'\n" + options;
}
std::string recovery_with(const std::string& options) {
  return "[[callback]]\nuse = 'recovery'\n" + options;
}

}  // namespace

TEST_CASE("recovery: falling back from float16 is the swap after that step, once") {
  const auto fell =
      train({fp16, inject("at_step = 5\n"), recovery_with("non_finite = ['fallback', 'skip']\n" + to_bf16)});
  const auto hand = train({fp16, inject("at_step = 5\n"),
                           "[[callback]]\nuse = 'switch'\nat_step = 5\n[callback.to]\nprecision = {use = 'bf16'}\n"
                           "scaler = {use = 'none'}\n"});
  CHECK(fell.thrown == Thrown{});
  CHECK(fell.precision == "precision/bf16");
  CHECK(fell.digest == hand.digest);
  const auto again =
      train({fp16, inject("at_step = 5\nevery = 3\n"), recovery_with("non_finite = ['fallback', 'skip']\n" + to_bf16)});
  CHECK(again.thrown == Thrown{});
  CHECK(std::ranges::count_if(again.told, [](const auto& text) { return says(text, "action=fallback"); }) == 1);
  CHECK(std::ranges::count_if(again.told, [](const auto& text) { return says(text, "action=skip"); }) == 2);
}

TEST_CASE("recovery: gradients that overflow under a scaler are the scaler's, until they are too many in a row") {
  const std::string storm = "[[callback]]\nuse = 'inject'\nlayer = 'layers.0'\nat_step = 3\nevery = 1\n";
  const auto few = train({fp16, "[[callback]]\nuse = 'inject'\nlayer = 'layers.0'\nat_step = 3\n", recovery_with("")});
  CHECK(few.thrown == Thrown{});
  CHECK(std::ranges::none_of(few.told, [](const auto& text) { return text.starts_with("recovered"); }));
  const auto many = train({fp16, storm, recovery_with("skips = 4\n")});
  CHECK(says(many.thrown.text, "after step 6: 4 updates in a row were skipped, the last in step 6"));
  const auto fell = train({fp16, storm, recovery_with("skips = 4\nskips_in_a_row = ['fallback']\n" + to_bf16)});
  CHECK(fell.precision == "precision/bf16");
}

TEST_CASE("recovery: gradients that are not finite are named where no scaler looks") {
  const auto ended = train({"[[callback]]\nuse = 'inject'\nlayer = 'layers.1'\nat_step = 3\n", recovery_with("")});
  CHECK(ended.thrown == Thrown{});
  CHECK(std::ranges::any_of(ended.told, [](const auto& text) {
    return text == "recovered trigger=non_finite gradients=layers.1.weight action=skip time=1 of 10";
  }));
}

namespace {

// A run of the program's own plugins, faulty or made by hand.
std::string digest_of(const std::string& text, const std::function<void(SmallRun&)>& before = nullptr) {
  const TemporaryFolder output;
  const NoLog no_log;
  SmallRun run(from_toml({text}), output.path().string());
  if (before) before(run);
  const auto thrown = thrown_by([&] { run.train(); });
  CHECK(thrown == Thrown{});
  return run.digest();
}

}  // namespace

TEST_CASE("recovery: a real run that skips or goes back is the run by hand, bit for bit" *
          doctest::test_suite("text")) {
  const TemporaryFolder folder;
  std::string lines;
  for (int i = 0; i < 300; ++i) lines += "line " + std::to_string(i * i) + '\n';
  const std::string around =
      "[run]\nsteps = 9\n[optimizer]\nuse = 'adamw'\n[checkpoint]\nuse = 'none'\n[[callback]]\n"
      "use = 'schedule'\nwarmup_steps = 4\n[[callback]]\nuse = 'clip_norm'\nmax_norm = 0.5\n";
  const Texts tasks{"[task]\nuse = 'mlp'\nsamples = 64\n",
                    "[task]\nuse = 'gpt'\ndata = ['" + folder.write("text", lines) +
                        "']\nlayers = 1\nheads = 2\nwidth = 16\ncontext = 16\ndropout = 0.1\n"};
  std::mt19937 random(5);
  for (const auto& task : tasks) {
    for (const std::string precision :
         {"[precision]\nuse = 'fp32'\n", "[precision]\nuse = 'bf16'\nlevel = 'O2'\n", "fp16"}) {
      const bool is_scaled = precision == "fp16";
      const auto config = (is_scaled ? fp16 : precision) + task + around;
      const auto bad = 2 + static_cast<std::int64_t>(random() % 7);  // the batch, from 1
      CAPTURE(config);
      CAPTURE(bad);
      const auto fault = inject("what = 'nan'\nat_batch = " + std::to_string(bad) + "\n");
      const auto rewound = digest_of(config + fault +
                                     recovery_with("non_finite = ['rewind']\nrewind_back = 2\n"
                                                   "snapshot_every = 2\n"));
      CHECK(rewound == digest_of(config, [&](SmallRun& run) {
              run.on(Event::StepBegin, [&](Run& now) {
                if (now.step + 1 == bad) run.wiring->task->next();  // passed over
              });
            }));
      if (is_scaled) continue;  // a scaler would lower its scale too
      CHECK(digest_of(config + fault + recovery_with("")) == digest_of(config, [&](SmallRun& run) {
              run.on(Event::GradientsReady, [&](Run& now) {
                if (now.step + 1 == bad) now.skip_update = torch::ones({});
              });
            }));
    }
  }
}

TEST_CASE(
    "recovery: a real run with a spike that is skipped, or with a lowered rate, is the run by hand in every "
    "precision" *
    doctest::test_suite("text")) {
  const TemporaryFolder folder;
  std::string lines;
  for (int i = 0; i < 300; ++i) lines += "line " + std::to_string(i * i) + '\n';
  const std::string around =
      "[run]\nsteps = 40\n[optimizer]\nuse = 'adamw'\n[checkpoint]\nuse = 'none'\n[[callback]]\n"
      "use = 'schedule'\nwarmup_steps = 4\n";
  const Texts tasks{"[task]\nuse = 'mlp'\nsamples = 64\n",
                    "[task]\nuse = 'gpt'\ndata = ['" + folder.write("text", lines) +
                        "']\nlayers = 1\nheads = 2\nwidth = 16\ncontext = 16\ndropout = 0.1\n"};
  constexpr std::int64_t bad = 30;  // the step, from 1: the recent norms are known by then
  for (const auto& task : tasks) {
    for (const std::string precision : {"[precision]\nuse = 'fp32'\n", "[precision]\nuse = 'bf16'\nlevel = 'O2'\n",
                                        "[precision]\nuse = 'fp16'\n[scaler]\nuse = 'dynamic'\ninit_scale = 64\n"}) {
      CAPTURE(task);
      CAPTURE(precision);
      const auto config = precision + task + around;
      const auto spike = inject("what = 'spike'\nfactor = 100\nat_step = " + std::to_string(bad) + "\n");
      int skipped = 0;
      const auto run_with = [&](const std::string& recovery) {
        return digest_of(config + spike + recovery, [&](SmallRun& run) {
          run.on(Event::StepEnd, [&](Run& now) {
            const bool is_skipped = now.skip_update.defined() && now.skip_update.item<float>() != 0;
            skipped += is_skipped ? 1 : 0;
            CHECK(is_skipped == (now.step == bad));
          });
        });
      };
      const auto by_hand = [&](const std::function<double(std::int64_t)>& factor) {
        return digest_of(config + spike, [&](SmallRun& run) {
          run.on(Event::GradientsReady, [&](Run& now) {
            now.learning_rate_factor *= factor(now.step + 1);
            if (now.step + 1 == bad) now.skip_update = torch::ones({});
          });
        });
      };
      CHECK(run_with(recovery_with("spike = ['skip']\nz_score = 20.0\nwindow = 40\n")) ==
            by_hand([](auto) { return 1.0; }));
      CHECK(skipped == 1);
      // A rate that is lowered is for the update of the spike too, which is applied: no veto.
      const auto lowered = digest_of(config + spike +
                                     recovery_with("spike = ['lower_learning_rate']\nz_score = 20.0\nwindow = 40\n"
                                                   "rate_factor = 0.25\nrate_steps = 4\nrate_return = 3\n"));
      const auto factor = [](std::int64_t step) {
        const auto after = step - bad;
        return after < 0 ? 1.0 : after < 4 ? 0.25 : after < 7 ? 0.25 + 0.75 * static_cast<double>(after - 3) / 4 : 1.0;
      };
      CHECK(lowered == digest_of(config + spike, [&](SmallRun& run) {
              run.on(Event::GradientsReady, [&](Run& now) { now.learning_rate_factor *= factor(now.step + 1); });
            }));
    }
  }
}

TEST_CASE("recovery: stopped anywhere around a rewind, the lines of losses.jsonl are those of the run that was not") {
  const std::string config = "[run]\nsteps = 8\n[task]\nuse = 'mlp'\nsamples = 64\n[optimizer]\nuse = 'adamw'\n" +
                             inject("what = 'nan'\nat_batch = 6\n") +
                             recovery_with("non_finite = ['rewind']\nrewind_back = 3\nsnapshot_every = 2\n") +
                             "[[monitor]]\nuse = 'jsonl'\n";
  const NoLog no_log;
  const auto lines_of = [](const SmallRun& run) {
    std::stringstream text;
    text << std::ifstream(run.run.output + "/losses.jsonl").rdbuf();
    return text.str() + run.digest();
  };
  const TemporaryFolder whole_output;
  SmallRun whole(from_toml({config}), whole_output.path().string());
  whole.train();
  for (int stop = 1; stop <= 11; ++stop) {
    CAPTURE(stop);
    const TemporaryFolder output;
    {
      SmallRun first(from_toml({config}), output.path().string());
      int passes = 0;
      first.on(Event::StepEnd, [&](Run&) {
        if (++passes == stop) const_cast<std::atomic<int>&>(*first.run.stop) = SIGINT;
      });
      first.train();
    }
    SmallRun second(from_toml({config}), output.path().string());
    REQUIRE(second.resume());
    second.train();
    CHECK(lines_of(second) == lines_of(whole));
  }
}

TEST_CASE("recovery: where an update is not applied, a batch norm keeps the averages from before the step") {
  const struct {
    std::string actions, more;
  } cases[] = {{"['skip']", ""},
               {"['lower_learning_rate']", ""},
               {"['drop_samples']", ""},
               {"['fallback']", "to = {precision = {use = 'bf16'}}\n"},
               {"['skip']", "[[callback]]\nuse = 'sam'\n"}};
  for (const auto& [actions, more] : cases) {
    CAPTURE(actions);
    CAPTURE(more);
    const auto buffers = [](const Run& run) {
      std::vector<torch::Tensor> all;
      for (const auto& buffer : run.model->buffers()) all.push_back(buffer.clone());
      return all;
    };
    std::int64_t skipped = 0, applied = 0;
    const auto ended =
        train({"[task]\nbatch_norm = true\nsamples = 160\n[[callback]]\nuse = 'inject'\nwhat = 'nan'\nwhere = 'input'\n"
               "at_batch = 5\n[[callback]]\nuse = 'recovery'\nnon_finite = " +
               actions + "\n" + more},
              [&](SmallRun& run) {
                auto before = std::make_shared<std::vector<torch::Tensor>>();
                run.on(Event::StepBegin, [&, before](Run& now) { *before = buffers(now); });
                run.on(Event::StepEnd, [&, before](Run& now) {
                  const auto after = buffers(now);
                  REQUIRE(!after.empty());
                  const bool is_same =
                      std::ranges::equal(after, *before, [](const auto& a, const auto& b) { return a.equal(b); });
                  const bool was_skipped = vernier::is_skipped(now.last_update);
                  CHECK(is_same == was_skipped);
                  (was_skipped ? skipped : applied) += 1;
                });
              });
    CHECK(ended.thrown.text == "");
    CHECK(skipped == 1);
    CHECK(applied == 11);
  }
}

TEST_CASE("recovery: where nothing happens, nothing changes") {
  const auto without = train({});
  const auto with =
      train({recovery_with("spike = ['rewind', 'stop']\nnon_finite = ['lower_learning_rate', 'stop']\n")});
  CHECK(with.digest == without.digest);
  CHECK(with.told.empty());
}

TEST_CASE("recovery: what is wrong or contradicts itself is refused") {
  const auto refusal = [](const std::string& options) { return thrown_by([&] { train({recovery_with(options)}); }); };
  const auto is_refused = [&](const std::string& options, const std::string& why) {
    const auto thrown = refusal(options);
    CHECK(thrown.kind == 2);
    CHECK_MESSAGE(says(thrown.text, "callback/recovery: " + why), thrown.text);
  };
  is_refused("spike = ['rewnd']\n",
             "`spike` has \"rewnd\"; did you mean \"rewind\"? It takes skip, drop_samples, lower_learning_rate");
  is_refused("spike = ['skip x']\n", "`spike` has \"skip x\"; behind the action stands how often at most");
  is_refused("spike = ['skip 0']\n", "`spike` has \"skip 0\"; behind the action");
  is_refused("spike = ['stop', 'skip']\n", "`spike` has \"skip\" behind \"stop\"");
  is_refused("spike = ['skip', 'skip 2']\n", "`spike` has \"skip\" twice");
  is_refused("spike = ['stop 2']\n", "`spike` has \"stop 2\", and that can be done once only");
  is_refused("skips_in_a_row = ['skip']\n", "`skips_in_a_row` cannot be met by \"skip\"");
  is_refused("rewind_back = 3\n", "`rewind_back` is for \"rewind\", which no trigger asks for");
  is_refused("rate_factor = 0.3\n", "`rate_factor` is for \"lower_learning_rate\"");
  is_refused("z_score = 3.0\n", "`z_score` is for `spike`");
  is_refused("skips = 3\nskips_in_a_row = []\n", "`skips` is for `skips_in_a_row`");
  is_refused("non_finite = ['fallback']\n", "`to` is needed for \"fallback\"");
  is_refused("to = {precision = {use = 'bf16'}}\n", "`to` is for \"fallback\"");
  is_refused("spike = ['rewind']\nrewind_back = 50\n",
             "`rewind_back` is 50, and 3 snapshots, one each 10 steps, may reach");
  is_refused("non_finite = []\nskips_in_a_row = []\n", "`non_finite` and all other triggers have no action");
  CHECK(says(refusal("non_finite = ['fallback']\nto = {precision = {use = 'bf61'}}\n").text, "bf61"));
}

}  // namespace recovery_run_test
