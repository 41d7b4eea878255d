// adaptive: what it measures, chooses, says and writes. Where a choice must not depend on times, min_gain leaves it to
// the errors: -1000 takes any dtype within the budget, and 1 takes none.
#include <ATen/ops/linear.h>
#include <doctest/doctest.h>
#include <torch/csrc/autograd/autograd.h>
#include <vernier/host.h>

#include <regex>

#include "../../../plugins/precision/adaptive/plans.h"
#include "fake_control.h"
#include "plugin_library.h"
#include "small_run.h"
#include "thrown.h"

namespace adaptive_test {

using vernier::Precision;
using vernier::Run;

namespace {

constexpr const char* base = R"(
[run]
steps = 12
[task]
use = "mlp"
batch_size = 12
[optimizer]
use = "adamw"
learning_rate = 0.01
[checkpoint]
use = "none"
)";
constexpr const char* always = "[precision]\nuse = \"adaptive\"\nmin_gain = -1000\n";

// Keeps what the program logs while it lives.
struct Log {
  Log() {
    lines.clear();
    vernier::set_log_sink(
        [](vernier::Level, const std::string& who, const std::string& text) { lines.push_back(who + ": " + text); });
  }
  ~Log() { vernier::set_log_sink(nullptr); }
  static std::int64_t count(const std::string& part) {
    return std::ranges::count_if(lines, [&](const std::string& line) { return says(line, part); });
  }
  static inline std::vector<std::string> lines;
};

// The errors of a dtype in a run's file, in the order of its sites.
std::vector<double> errors_in(const std::string& file, const std::string& dtype) {
  const std::regex line("#   " + dtype + ": [^,]*, error ([^\n]*)");
  std::vector<double> errors;
  for (std::sregex_iterator found(file.begin(), file.end(), line), end; found != end; ++found) {
    errors.push_back(std::stod((*found)[1]));
  }
  return errors;
}

// The file of a run as what callback/switch puts in the place of float32 after as many steps.
std::string switched_to(std::string file, int steps) {
  for (auto& [from, to] :
       {std::pair("[[precision.", "[[callback.to.precision."), {"[precision]", "[callback.to.precision]"}}) {
    for (auto at = file.find(from); at != std::string::npos; at = file.find(from, at + 1)) {
      file.replace(at, std::string(from).size(), to);
    }
  }
  return "[[callback]]\nuse = 'switch'\nat_step = " + std::to_string(steps) + "\n" + file;
}

}  // namespace

TEST_CASE("adaptive: what follows it is the plain policy of its file, bit for bit, and resumed too") {
  const TemporaryFolder measured;
  SmallRun first(from_toml({base, always}), measured.path().string());
  first.train();
  const auto errors = errors_in(read_text(measured.path() / "adaptive.toml"), "bf16");
  REQUIRE(errors.size() == 2);
  const auto between = "error_budget = " + std::to_string((errors[0] + errors[1]) / 2) + "\n";

  struct Case {
    std::string options, policy, in_file, line;
  };
  const std::string bf16 = "use = \"bf16\"\n", rule = "\n[[precision.rule]]\nmatch = ";
  const std::string both = "all products compute in ", scaler = "[scaler]\nuse = 'dynamic'\ninit_scale = 64.0\n";
  const std::string exact = errors[0] < errors[1] ? "layers.1" : "layers.0";
  const Case cases[] = {
      {"", "bf16", bf16, both + "bf16"},
      {between, "bf16", bf16 + rule + "\"" + exact + "\"\nop = \"linear\"\nuse = \"fp32\"\n", "compute in "},
      {"rule = [{match = 'layers.1', use = 'fp32'}]\n", "bf16", bf16 + rule + "\"layers.1\"\nuse = \"fp32\"\n",
       both + "bf16"},
      {"attention = 'matmul'\nweight_casts = 'update'\n", "bf16",
       "attention = \"matmul\"\n" + bf16 + "weight_casts = \"update\"\n", both + "bf16"},
      {"candidates = ['fp8']\nerror_budget = 0.5\n", "bf16",
       bf16 + rule + "\"layers.0\"\nop = \"linear\"\nuse = \"fp8\"\n", "compute in "},
      {"candidates = ['fp16']\n" + scaler, "fp16", "use = \"fp16\"\n", both + "fp16"},
      {"min_gain = 1\n", "fp32", "use = \"fp32\"\n", both + "fp32"},
  };
  for (const auto& [options, policy, in_file, line] : cases) {
    CAPTURE(options);
    const TemporaryFolder output, again;
    const Log log;
    const std::string precision = says(options, "min_gain") ? "[precision]\nuse = 'adaptive'\n" : always;
    const auto config =
        from_toml({base, precision + options, "[checkpoint]\nuse = 'rolling'\nevery = 1\nkeep_last = 20\n"});
    SmallRun run(config, output.path().string());
    CHECK_FALSE(run.wiring->precision->is_mixed());
    run.train();
    CHECK(run.wiring->precision->id() == "precision/" + policy);
    CHECK(log.count("precision/adaptive: from step 4 on ") == 1);
    CHECK(log.count(line) >= 1);
    const auto file = read_text(output.path() / "adaptive.toml");
    CHECK_MESSAGE(says(file, "[precision]\n" + in_file + "\n#"), file);
    CHECK(run.run.amp.amp_steps() == (policy == "fp32" ? 0 : 9));
    CHECK((says(file, "fp8: ") == says(options, "fp8")));

    const auto start = says(options, "scaler") ? scaler : "";
    const auto rules = says(options, "rule") ? "[precision]\n" + options : "";
    SmallRun switched(from_toml({base, start, rules, switched_to(file, 3)}), again.path().string());
    switched.train();
    CHECK(switched.digest() == run.digest());
    for (const char* step : {"2", "3", "7"}) {
      const TemporaryFolder elsewhere;
      SmallRun resumed(config, elsewhere.path().string());
      REQUIRE(resumed.resume(output.path() / ("checkpoints/step-0000000" + std::string(step))));
      CHECK(resumed.trainer->step().transaction().is_rerun_wanted() == (std::string(step) == "2"));
      resumed.train();
      CHECK(resumed.digest() == run.digest());
    }
  }
}

TEST_CASE("adaptive: measuring changes nothing, and what stays in float32 is said with its reason") {
  const TemporaryFolder output;
  SmallRun fp32(from_toml({base}), output.path().string());
  fp32.train();
  const std::pair<const char*, const char*> cases[] = {
      {"error_budget = 1e-6\n", "nothing else keeps to error_budget = 1e-06: the least error is 0.00"},
      {"candidates = []\n", "`candidates` names nothing else"},
      {"min_gain = 1\n", "forward and backward take "},
      {"rule = [{use = 'fp32'}]\n", "everything computes in fp32, because the model has no products"},
      {"measure_steps = 13\n", "it never decides: measure_steps = 13, and the run has 12 steps"},
  };
  for (const auto& [options, reason] : cases) {
    CAPTURE(options);
    const TemporaryFolder folder;
    const Log log;
    SmallRun run(from_toml({base, "[precision]\nuse = \"adaptive\"\n", std::string("[precision]\n") + options}),
                 folder.path().string());
    run.train();
    CHECK(log.count(reason) == 1);
    CHECK(run.digest() == fp32.digest());
    CHECK(run.run.amp.amp_steps() == 0);
  }
}

TEST_CASE("adaptive: if its file cannot be written the run goes on, and the reason is reported") {
  const Log log;
  const TemporaryFolder output;
  const auto file = output / "adaptive.toml";
  std::filesystem::create_directory(file);
  SmallRun run(from_toml({base, always}), output.path().string());
  run.train();
  CHECK(run.run.step == 12);
  CHECK(log.count(file + ": cannot be written: Is a directory") == 1);
}

TEST_CASE("adaptive: the error is that of outputs and gradients, by its definition") {
  // One layer by itself, with a gradient that is known.
  const TemporaryFolder output;
  FakeControl control;
  vernier::TrainerRun own;
  own.control = &control;
  own.output = output.path().string();
  own.model = std::make_shared<torch::nn::Module>();
  auto layer = own.model->register_module("head", std::make_shared<torch::nn::Module>());
  torch::manual_seed(7);
  const auto weight = layer->register_parameter("weight", torch::randn({5, 64}));
  const auto input = torch::randn({16, 64});
  const auto direction = torch::randn({16, 5});
  const auto precision = make_plugin<Precision>("precision/adaptive", {{"measure_steps", {std::int64_t{1}, ""}}});
  precision->prepare(own);
  vernier::Bus bus;
  vernier::HostApi::attach(bus, *precision, false);
  vernier::HostApi::emit(bus, vernier::Event::StepBegin, own);
  precision->forward([&] { return (at::linear(input, weight) * direction).sum(); }).backward();
  vernier::HostApi::emit(bus, vernier::Event::GradientsReady, own);
  CHECK(control.swaps.size() == 1);
  const auto errors = errors_in(read_text(output.path() / "adaptive.toml"), "bf16");
  REQUIRE(errors.size() == 1);

  const auto relative = [](const torch::Tensor& a, const torch::Tensor& b) {
    return ((a.to(torch::kFloat64) - b.to(torch::kFloat64)).norm() / b.to(torch::kFloat64).norm()).item<double>();
  };
  const auto low = [](const torch::Tensor& tensor) { return tensor.detach().to(torch::kBFloat16); };
  const double of_output = relative(at::linear(low(input), low(weight)), at::linear(input, weight.detach()));
  const double of_gradient = relative(at::matmul(low(direction).t(), low(input)), at::matmul(direction.t(), input));
  CHECK(errors[0] == doctest::Approx(std::max(of_output, of_gradient)).epsilon(1e-4));
}

TEST_CASE("adaptive: a layer whose gradients overflow while it is measured stays in float32") {
  for (const std::string scale : {"64.0", "1099511627776.0"}) {  // 2^40 is out of float16's range
    const TemporaryFolder output;
    SmallRun run(
        from_toml({base, always,
                   "[precision]\ncandidates = [\"fp16\"]\n[scaler]\nuse = \"dynamic\"\ninit_scale = " + scale + "\n"}),
        output.path().string());
    run.train();
    CHECK(run.wiring->precision->id() == (scale == "64.0" ? "precision/fp16" : "precision/fp32"));
  }
}

TEST_CASE("adaptive: of two policies the later one has to save the gain, and more than the noise") {
  const auto plan = [](std::vector<double> seconds) {
    adaptive::Plan plan{"", adaptive::Use::fp32};
    plan.seconds = std::move(seconds);
    return plan;
  };
  struct Case {
    std::vector<std::vector<double>> seconds;  // by policy and round
    double min_gain;
    std::size_t best;
    bool is_clear;
  };
  const std::vector<double> one = {1, 1, 1, 1, 1};
  const Case cases[] = {
      {{one, {.9, .9, .9, .9, .9}}, .02, 1, true},
      {{one, {.99, .99, .99, .99, .99}}, .02, 0, true},  // faster, but by less than the gain
      {{one, {.5, .5, .5, .5, 1.1}}, .02, 0, false},     // one round says otherwise: more rounds
      {{one, {1.1, 1.2, 1.1, 1.3, 1.1}}, .02, 0, true},
      {{one, {1.1, 1.2, 1.1, 1.3, 1.1}}, -.5, 1, true},  // it may cost a half
      {{one, {.9, .9, .9, .9, .9}, {.8, .8, .8, .8, .8}}, .02, 2, true},
      {{one, {.9, .9, .9, .9, .9}, {.89, .89, .89, .89, .89}}, .02, 1, true},
      {{one, {.9, .9, .9, .9, .9}, {.89, .89, .89, .89, .89}}, -1000, 1, true},
      {{{1, 2, 1, 3, 1}, {.9, 1.8, .9, 2.7, .9}}, .02, 1, true},  // a busy machine disturbs both alike
      {{one, {HUGE_VAL, HUGE_VAL, HUGE_VAL, HUGE_VAL, HUGE_VAL}}, -1000, 0, true},
  };
  for (const auto& each : cases) {
    std::vector<adaptive::Plan> plans;
    for (const auto& seconds : each.seconds) plans.push_back(plan(seconds));
    CAPTURE(&each - cases);
    CHECK(adaptive::fastest(plans, each.min_gain) == each.best);
    CHECK(adaptive::ratio(plans[1], plans[0]).is_clear(each.min_gain) == each.is_clear);
  }
}

TEST_CASE("adaptive: a rule for an operator without a layer leaves that operator of other layers as it is") {
  using adaptive::Use;
  const adaptive::Measured good{1, 0}, bad{1, 1};
  const adaptive::Sites sites = {
      {"", "matmul", {good, bad}}, {"a", "matmul", {good, good}}, {"b", "linear", {good, good}}};
  const auto plans = adaptive::plans_for(sites, {{Use::fp32, Use::bf16}, 2, {}, {}, 0.02, 0.02});
  REQUIRE(plans.size() == 2);
  CHECK(plans[1].toml() ==
        "[precision]\nuse = \"bf16\"\n\n[[precision.rule]]\nmatch = \"a\"\nop = \"matmul\"\nuse = \"policy\"\n"
        "\n[[precision.rule]]\nmatch = \"*\"\nop = \"matmul\"\nuse = \"fp32\"\n");
}

TEST_CASE("adaptive: bad options are refused in one line") {
  const auto trouble = [](const std::string& options) {
    const TemporaryFolder output;
    return thrown_by([&] {
      SmallRun(from_toml({base, "[precision]\nuse = \"adaptive\"\n" + options}), output.path().string());
    });
  };
  CHECK(says(trouble("candidates = [\"bf17\"]").text, "`candidates` may name bf16, fp16 and fp8, and has \"bf17\""));
  CHECK(says(trouble("candidates = [\"fp16\"]").text, "needs a loss scaler"));
  CHECK(says(trouble("[optimizer]\nin_backward = true").text, "leave one of them out"));
}

}  // namespace adaptive_test
