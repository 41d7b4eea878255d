#include <doctest/doctest.h>

#include <chrono>
#include <random>

#include "log_lines.h"
#include "small_run.h"
#include "thrown.h"

namespace inject_test {

using vernier::Event;
using vernier::Run;

namespace {

constexpr const char* base = R"(
[run]
steps = 5
[task]
use = "mlp"
samples = 64
inputs = 6
hidden = [7, 5]
[optimizer]
use = "sgd"
[checkpoint]
use = "none"
[[callback]]
use = "inject"
)";

// The results of each step: gradients by name, the loss, notices.
struct Seen {
  std::vector<vernier::Tensors> gradients, weights;
  std::vector<double> losses;
  std::vector<std::string> notices, sentences;
};

Seen train(const std::string& options, const std::string& with = base,
           const std::function<void(SmallRun&)>& before = nullptr) {
  const TemporaryFolder output;
  const NoLog no_log;
  SmallRun run(from_toml({with + options}), output.path().string());
  Seen seen;
  run.on(Event::GradientsReady, [&](Run& now) {
    seen.gradients.emplace_back();
    seen.weights.emplace_back();
    for (const auto& parameter : now.parameters) {
      seen.gradients.back()[parameter.name] = parameter.master.grad().clone();
      seen.weights.back()[parameter.name] = parameter.model.detach().clone();
    }
    seen.losses.push_back(now.loss.item<double>());
  });
  run.on(Event::StepEnd, [&](Run& now) {
    for (const auto& notice : now.notices) {
      if (notice.name != "injected") continue;
      seen.notices.push_back(c10::str(now.step, " ", notice.text()));
      seen.sentences.push_back(notice.sentence);
    }
  });
  if (before) before(run);
  run.train();
  return seen;
}

std::vector<std::string> not_finite(const vernier::Tensors& tensors) {
  std::vector<std::string> names;
  for (const auto& [name, tensor] : tensors) {
    if (!tensor.isfinite().all().item<bool>()) names.push_back(name);
  }
  return names;
}

bool equal(const vernier::Tensors& a, const vernier::Tensors& b) {
  return std::ranges::equal(a, b, [](const auto& x, const auto& y) {
    return x.first == y.first && torch::allclose(x.second, y.second, 0, 0, /*equal_nan=*/true);
  });
}

std::string refusal(const std::string& options, const std::string& with = base) {
  return thrown_by([&] { train(options, with); }).text;
}

const Seen& untouched() {
  static const Seen seen = train("what = 'slow'\nmilliseconds = 0\nat_step = 99\n");
  return seen;
}

}  // namespace

TEST_CASE("inject: a gradient of the named layer, in the named step, the rest as it was") {
  const auto seen = train("where = 'gradient'\nlayer = 'layers.1'\nat_step = 3\n");
  CHECK(seen.notices ==
        std::vector<std::string>{"3 injected what=inf where=gradient parameter=layers.1.weight elements=1"});
  CHECK(seen.sentences ==
        std::vector<std::string>{"inf is injected into the gradient of layers.1.weight, elements: 1"});
  for (int i = 0; i < 2; ++i) CHECK(equal(seen.gradients[i], untouched().gradients[i]));
  CHECK(not_finite(seen.gradients[2]) == std::vector<std::string>{"layers.1.weight"});
  CHECK(seen.gradients[2].at("layers.1.weight").isinf().sum().item<int>() == 1);
  CHECK(seen.gradients[2].at("layers.0.weight").equal(untouched().gradients[2].at("layers.0.weight")));
  CHECK(seen.losses[2] == untouched().losses[2]);
}

TEST_CASE("inject: spikes and underflows multiply, exactly") {
  const auto expected = untouched().gradients[0].at("layers.2.bias");
  const auto gradient_with = [](const std::string& options) {
    return train("layer = 'layers.2.bias'\nat_step = 1\n" + options).gradients[0].at("layers.2.bias");
  };
  CHECK(gradient_with("what = 'spike'\n").equal(expected * 1000));
  CHECK(gradient_with("what = 'spike'\nfactor = -3\n").equal(expected * -3));
  CHECK(gradient_with("what = 'underflow'\n").equal(expected * 0x1p-24));
  CHECK(gradient_with("what = 'underflow'\nexponent = -1000\n").equal(expected * 0));
  const auto two = gradient_with("what = 'spike'\nelements = 2\n");
  CHECK(two.eq(expected * 1000).sum().item<int>() == 2);
  CHECK(two.eq(expected).sum().item<int>() == expected.numel() - 2);
  CHECK(two.equal(gradient_with("what = 'spike'\nelements = 2\n")));
}

TEST_CASE("inject: an underflow is a multiplication by its power of two, wherever it is") {
  for (const std::string place : {"loss", "input", "activation", "activation_gradient", "weight"}) {
    CAPTURE(place);
    const auto layer = place == "loss" || place == "input" ? ""
                       : place == "weight"                 ? "layer = 'layers.1.weight'\n"
                                                           : "layer = 'layers.1'\n";
    const auto with = [&](const std::string& what) {
      return train("where = '" + place + "'\nat_step = 2\n" + layer + what);
    };
    const auto under = with("what = 'underflow'\nexponent = -20\n"),
               times = with("what = 'spike'\nfactor = 9.5367431640625e-07\n");
    CHECK(under.notices.size() == 1);
    CHECK(equal(under.gradients[0], untouched().gradients[0]));
    CHECK(under.losses == times.losses);
    for (std::size_t i = 0; i < under.gradients.size(); ++i) CHECK(equal(under.gradients[i], times.gradients[i]));
    CHECK_FALSE(equal(under.gradients[1], untouched().gradients[1]));
    if (place == "loss") CHECK(under.losses[1] == untouched().losses[1] * 0x1p-20);
    if (place == "weight") {
      const auto& weight = untouched().weights[1].at("layers.1.weight");
      CHECK(under.weights[1].at("layers.1.weight").equal(weight * 0x1p-20));
    }
  }
}

TEST_CASE("inject: a slow step takes at least so much longer, and changes no number") {
  using Clock = std::chrono::steady_clock;
  std::vector<double> seconds;
  const auto timed = [&](SmallRun& run) {
    static Clock::time_point start;
    run.on(Event::StepBegin, [](Run&) { start = Clock::now(); });
    run.on(Event::StepEnd,
           [&](Run&) { seconds.push_back(std::chrono::duration<double>(Clock::now() - start).count()); });
  };
  const auto seen = train("what = 'slow'\nmilliseconds = 300\nat_step = 4\n", base, timed);
  REQUIRE(seconds.size() == 5);
  CHECK(seconds[3] >= 0.3);
  CHECK(*std::ranges::min_element(seconds) < 0.3);
  CHECK(seen.losses == untouched().losses);
  CHECK(seen.notices == std::vector<std::string>{"4 injected what=slow milliseconds=300"});
  CHECK(seen.sentences == std::vector<std::string>{"the step was made 300 ms longer"});
}

TEST_CASE("inject: the loss, its gradient with it") {
  const auto seen = train("what = 'spike'\nfactor = 8\nwhere = 'loss'\nat_step = 2\n");
  CHECK(seen.losses[1] == 8 * untouched().losses[1]);
  for (const auto& [name, gradient] : seen.gradients[1]) CHECK(gradient.equal(untouched().gradients[1].at(name) * 8));
  CHECK(not_finite(train("what = 'nan'\nwhere = 'loss'\nat_step = 2\n").gradients[1]).size() == 6);
}

TEST_CASE("inject: an activation, seen by what comes after the layer and by no layer before") {
  const auto seen = train("what = 'spike'\nwhere = 'activation'\nlayer = 'layers.2'\nat_step = 2\nelements = 1\n");
  CHECK(seen.losses[0] == untouched().losses[0]);
  CHECK(seen.losses[1] != untouched().losses[1]);
  CHECK(seen.notices ==
        std::vector<std::string>{"2 injected what=spike where=activation layer=layers.2 factor=1000 elements=1"});
  const auto bad = train("what = 'nan'\nwhere = 'activation'\nlayer = 'layers.0'\nat_step = 1\n");
  CHECK(std::isnan(bad.losses[0]));
}

TEST_CASE("inject: the gradient of an activation spoils what is before it, not what is after") {
  const auto seen = train("what = 'nan'\nwhere = 'activation_gradient'\nlayer = 'layers.1'\nat_step = 1\n");
  CHECK(seen.losses[0] == untouched().losses[0]);
  const auto names = not_finite(seen.gradients[0]);
  for (const auto& name : names) CHECK(name[7] <= '1');
  CHECK(std::ranges::find(names, "layers.1.weight") != names.end());
  CHECK(seen.gradients[0].at("layers.2.weight").equal(untouched().gradients[0].at("layers.2.weight")));
}

TEST_CASE("inject: a weight stays as it was made, its master too") {
  const std::string options = "what = 'spike'\nfactor = 4\nwhere = 'weight'\nlayer = 'layers.0.bias'\nat_step = 1\n";
  const auto before = train("what = 'slow'\nmilliseconds = 0\nat_step = 1\n").weights[0].at("layers.0.bias");
  CHECK(train(options).weights[0].at("layers.0.bias").equal(before * 4));
  const auto low = train(options, std::string("[precision]\nuse = 'bf16'\nlevel = 'O2'\n") + base);
  const auto low_before = before.to(torch::kBFloat16);
  CHECK(low.weights[0].at("layers.0.bias").equal(low_before * 4));
  CHECK(low.weights[1].at("layers.0.bias").allclose(low_before * 4, 0.1, 0.3));  // the master was not put back over it
  CHECK_FALSE(low.weights[1].at("layers.0.bias").allclose(low_before, 0.1, 0.01));
}

TEST_CASE("inject: the input, for this run alone: the task's own data stay") {
  const auto seen = train("what = 'inf'\nwhere = 'input'\nat_step = 2\nelements = 3\n");
  CHECK(!std::isfinite(seen.losses[1]));
  CHECK(seen.losses[0] == untouched().losses[0]);
}

TEST_CASE("inject: a pattern is for all layers that it matches") {
  const auto seen = train("layer = 'layers.?'\nat_step = 4\n");
  CHECK(seen.notices.size() == 3);
  CHECK(not_finite(seen.gradients[3]).size() == 3);
}

TEST_CASE("inject: it comes again after `every`, so many `times`") {
  const auto steps = [](const std::string& options) {
    std::string steps;
    for (const auto& notice : train("what = 'slow'\nmilliseconds = 0\n" + options).notices) steps += notice[0];
    return steps;
  };
  CHECK(steps("at_step = 2\n") == "2");
  CHECK(steps("at_batch = 2\n") == "2");
  CHECK(steps("at_step = 2\nevery = 1\n") == "2345");
  CHECK(steps("at_step = 1\nevery = 2\n") == "135");
  CHECK(steps("at_step = 1\nevery = 2\ntimes = 2\n") == "13");
}

TEST_CASE("inject: what is transient does not come again where the step is run again") {
  for (const bool is_transient : {false, true}) {
    std::vector<std::size_t> bad;
    const auto again = [&](SmallRun& run) {
      run.on(Event::GradientsReady, [&](Run& now) {
        if (now.step != 1) return;
        bad.push_back(now.non_finite_gradients().size());
        now.control->recompute();
        bad.push_back(now.non_finite_gradients().size());
      });
    };
    const auto seen =
        train(std::string("layer = 'layers.1'\nat_step = 2\ntransient = ") + (is_transient ? "true\n" : "false\n"),
              base, again);
    CHECK(bad == std::vector<std::size_t>{1, is_transient ? 0U : 1U});
    CHECK(seen.notices.size() == 1);
  }
}

TEST_CASE("inject: with micro-batches, in the first of them, also where forwards are watched twice") {
  const std::string two = std::string("[accumulation]\nuse = 'fixed'\nmicro_batches = 4\n") + base;
  const auto seen = train(
      "what = 'nan'\nwhere = 'activation'\nlayer = 'layers.0'\nat_step = 2\n[[callback]]\nuse = 'inject'\n"
      "what = 'nan'\nwhere = 'activation'\nlayer = 'layers.1'\nat_step = 2\n",
      two);
  CHECK(seen.notices.size() == 2);
  CHECK(std::isfinite(seen.losses[0]));
  CHECK(std::isnan(seen.losses[1]));
}

TEST_CASE("inject: random faults are where they should be, and the same in each run") {
  std::mt19937 random(7);
  const auto one_of = [&](const auto& list) { return list[random() % list.size()]; };
  const std::vector<std::string> kinds{"inf", "nan"}, places{"gradient", "weight", "activation", "activation_gradient"};
  for (int i = 0; i < 60; ++i) {
    const auto place = one_of(places), kind = one_of(kinds);
    const auto layer = "layers." + std::to_string(random() % 3);
    const auto step = 1 + random() % 5;
    const auto options = c10::str("what = '", kind, "'\nwhere = '", place, "'\nlayer = '", layer, "'\nat_step = ", step,
                                  "\nelements = ", 1 + random() % 3, "\nseed = ", random() % 100, "\n");
    CAPTURE(options);
    const auto seen = train(options);
    REQUIRE(seen.notices.size() == 1);
    CHECK(seen.notices[0].starts_with(std::to_string(step) + ' '));
    CHECK(seen.notices[0].find("=" + layer) != std::string::npos);
    for (std::size_t k = 0; k + 1 < step; ++k) CHECK(equal(seen.gradients[k], untouched().gradients[k]));
    const auto gradients = not_finite(seen.gradients[step - 1]), weights = not_finite(seen.weights[step - 1]);
    CHECK(weights == (place == "weight" ? std::vector<std::string>{layer + ".weight"} : std::vector<std::string>{}));
    if (place == "gradient") CHECK(gradients == std::vector<std::string>{layer + ".weight"});
    if (place == "gradient" || place == "activation_gradient")
      CHECK(seen.losses[step - 1] == untouched().losses[step - 1]);
    const auto again = train(options);
    CHECK(again.notices == seen.notices);
    REQUIRE(again.gradients.size() == seen.gradients.size());  // a run with a broken weight ends before step 5
    for (std::size_t k = 0; k < seen.gradients.size(); ++k) CHECK(equal(again.gradients[k], seen.gradients[k]));
  }
}

TEST_CASE("inject: a fault that the run ended before is reported, once, and one that came is not") {
  const auto warnings = [](const std::string& options, int stop_after = 0) {
    const TemporaryFolder output;
    static std::vector<std::string> texts;
    texts.clear();
    SmallRun run(from_toml({base + ("what = 'slow'\nmilliseconds = 0\n" + options)}), output.path().string());
    if (stop_after > 0) run.stop_after(stop_after);
    vernier::set_log_sink([](vernier::Level level, const std::string&, const std::string& text) {
      if (level == vernier::Level::warning) texts.push_back(text);
    });
    run.train();
    vernier::set_log_sink(nullptr);
    return texts;
  };
  using Texts = std::vector<std::string>;
  CHECK(warnings("at_step = 9\n") == Texts{"nothing was injected in this run, which ended after step 5: at_step is 9"});
  CHECK(warnings("at_batch = 9\n") ==
        Texts{"nothing was injected in this run, which ended after batch 5: at_batch is 9"});
  CHECK(warnings("at_step = 5\n").empty());
  CHECK(warnings("at_step = 9\n", 3).empty());  // it goes on
}

TEST_CASE("inject: what is wrong is refused") {
  CHECK(says(refusal("layer = 'layers.1'\n"), "callback/inject: `at_step` or `at_batch` must say when it comes"));
  CHECK(says(refusal("at_step = 1\n"), "callback/inject: `layer` is needed"));
  CHECK(says(
      refusal("at_step = 1\nlayer = 'layer.1'\n"),
      "`layer` is \"layer.1\", and no layer or parameter of this model has such a name; did you mean \"layers.1\"?"));
  CHECK(says(refusal("at_step = 1\nwhere = 'activation'\nlayer = 'layers.1.bias'\n"), "no layer of this model"));
  CHECK(says(refusal("at_step = 1\nat_batch = 1\nwhere = 'loss'\n"), "`at_batch` and `at_step` both say when"));
  CHECK(says(refusal("at_step = 1\nwhere = 'loss'\nlayer = 'layers.1'\n"),
             "`layer` is for activations, gradients and weights"));
  CHECK(says(refusal("at_step = 1\nwhat = 'slow'\nwhere = 'loss'\n"), "`where` does not fit a slow step"));
  CHECK(says(refusal("at_step = 1\nwhat = 'exception'\nlayer = 'layers.1'\n"), "`layer` is for activations"));
  CHECK(says(refusal("at_step = 1\nwhere = 'loss'\nfactor = 3\n"), "`factor` is for what = \"spike\""));
  CHECK(says(refusal("at_step = 1\nwhere = 'loss'\ntimes = 3\n"), "`times` needs `every`"));
  CHECK(says(refusal("at_step = 1\nwhere = 'weight'\nlayer = 'layers.0'\ntransient = true\n"),
             "`transient` does not fit a weight"));
}

TEST_CASE("inject: an exception ends the run with the step in which it came, which is not done") {
  const TemporaryFolder output;
  const NoLog no_log;
  SmallRun run(from_toml({base + std::string("what = 'exception'\nat_step = 3\n")}), output.path().string());
  CHECK(thrown_by([&] { run.train(); }) ==
        Thrown{4, "callback/inject at BatchReady of step 3: an exception is injected"});
  CHECK(run.run.step == 2);
}

TEST_CASE("inject: tokens are no numbers that could be made inf" * doctest::test_suite("text")) {
  const TemporaryFolder folder;
  std::string text;
  for (int i = 0; i < 300; ++i) text += "line " + std::to_string(i * i) + '\n';
  const std::string gpt = "[run]\nsteps = 2\n[task]\nuse = 'gpt'\ndata = ['" + folder.write("text", text) +
                          "']\nlayers = 1\nheads = 2\nwidth = 16\ncontext = 16\n[optimizer]\nuse = 'sgd'\n" +
                          "[checkpoint]\nuse = 'none'\n[[callback]]\nuse = 'inject'\n";
  CHECK(says(refusal("where = 'input'\nat_step = 2\n", gpt),
             "`where` is \"input\", and this task's batches have no floating"));
  const auto seen = train("what = 'nan'\nwhere = 'activation'\nlayer = 'h.0.mlp.c_fc'\nat_step = 2\n", gpt);
  CHECK(std::isnan(seen.losses[1]));
}

}  // namespace inject_test
