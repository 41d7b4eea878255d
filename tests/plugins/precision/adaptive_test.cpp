// adaptive: what it measures, decides, reports and repeats. Times are made up here, so that decisions do not depend on
// them.
#include <ATen/ops/linear.h>
#include <doctest/doctest.h>
#include <torch/csrc/autograd/autograd.h>
#include <vernier/host.h>

#include <sstream>

#include "plugin_library.h"
#include "small_run.h"
#include "thrown.h"

namespace adaptive_test {

using vernier::Notice;
using vernier::Precision;
using vernier::Run;
using vernier::State;

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

// From the second step on the plugin remembers that everything but float32 takes no time.
void make_16_bits_free(SmallRun& run) {
  run.on(vernier::Event::StepBegin, [&run](Run& now) {
    if (now.step == 0) return;
    auto state = run.wiring->precision->save();
    for (auto& [name, tensor] : state.tensors) {
      if (!name.starts_with("seconds/")) continue;
      tensor.fill_(1e-12);
      tensor[0] = HUGE_VAL;
    }
    run.wiring->precision->load(state);
  });
}

std::vector<Notice> policy_changes(SmallRun& run) {
  std::vector<Notice> changes;
  run.on(vernier::Event::StepEnd, [&changes](Run& now) {
    for (const auto& notice : now.notices) {
      if (notice.name == "policy_changed") changes.push_back(notice);
    }
  });
  run.train();
  return changes;
}

std::string word(const Notice& notice, const std::string& key) {
  for (const auto& [name, value] : notice.details) {
    if (name == key) return std::get<std::string>(value);
  }
  return "";
}
double number(const Notice& notice, const std::string& key) {
  for (const auto& [name, value] : notice.details) {
    if (name == key) return std::get<double>(value);
  }
  return NAN;
}

}  // namespace

TEST_CASE("adaptive: decides after its first steps, reports it, and its file repeats the run without measuring") {
  const TemporaryFolder output, again;
  SmallRun run(from_toml({base, "[precision]\nuse = \"adaptive\"\n"}), output.path().string());
  make_16_bits_free(run);
  const auto changes = policy_changes(run);
  REQUIRE(changes.size() == 1);
  CHECK(changes[0].step == 3);  // reported in the third step, holds from the fourth
  CHECK(word(changes[0], "layers") == "layers.0, layers.1");
  CHECK(word(changes[0], "from") == "fp32");
  CHECK(word(changes[0], "to") == "bf16");
  CHECK(number(changes[0], "error") > 1e-4);
  CHECK(number(changes[0], "error") < 1e-2);

  const auto overlay = read_text(output.path() / "adaptive.toml");
  CHECK(says(overlay, "step = 3\nlayer = \"layers.0\"\nop = \"linear\"\nuse = \"bf16\""));
  SmallRun repeated(from_toml({base, overlay}), again.path().string());
  CHECK(policy_changes(repeated).empty());
  CHECK(repeated.digest() == run.digest());
  SmallRun fp32(from_toml({base}), again.path().string());
  fp32.train();
  CHECK(fp32.digest() != run.digest());
}

TEST_CASE("adaptive: if its file cannot be written the run goes on, and the reason is reported") {
  static std::vector<std::string> warnings;
  vernier::set_log_sink([](vernier::Level, const std::string&, const std::string& text) { warnings.push_back(text); });
  const TemporaryFolder output;
  const auto file = output / "adaptive.toml";
  std::filesystem::create_directory(file);
  SmallRun run(from_toml({base, "[precision]\nuse = \"adaptive\"\n"}), output.path().string());
  make_16_bits_free(run);
  run.train();
  CHECK(run.run.step == 12);
  CHECK(std::ranges::count(warnings, file + ": cannot be written: Is a directory") == 1);
  vernier::set_log_sink(nullptr);
}

TEST_CASE("adaptive: measuring changes nothing, and what is over the budget stays in float32") {
  const TemporaryFolder output;
  SmallRun run(from_toml({base, "[precision]\nuse = \"adaptive\"\nerror_budget = 1e-6\nmeasure_steps = 12\n"}),
               output.path().string());
  make_16_bits_free(run);
  CHECK(policy_changes(run).empty());
  SmallRun fp32(from_toml({base}), output.path().string());
  fp32.train();
  CHECK(run.digest() == fp32.digest());
  CHECK(says(run.wiring->precision->save().text("decisions"), "\n12\n"));
}

TEST_CASE("adaptive: the error is that of outputs and gradients, by its definition") {
  // One layer by itself, with a gradient that is known.
  vernier::TrainerRun own;
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
  auto state = precision->save();
  for (auto& [name, tensor] : state.tensors) {
    if (name.starts_with("seconds/")) tensor[1] = 0.0;
  }
  precision->load(state);
  own.step += 1;
  vernier::HostApi::emit(bus, vernier::Event::StepEnd, own);
  REQUIRE(own.notices.size() == 1);
  CHECK(word(own.notices[0], "layers") == "head");
  CHECK(own.notices[0].sentence.starts_with("linear of head changes from fp32 to bf16, which is "));

  const auto relative = [](const torch::Tensor& a, const torch::Tensor& b) {
    return ((a.to(torch::kFloat64) - b.to(torch::kFloat64)).norm() / b.to(torch::kFloat64).norm()).item<double>();
  };
  const auto low = [](const torch::Tensor& tensor) { return tensor.detach().to(torch::kBFloat16); };
  const double of_output = relative(at::linear(low(input), low(weight)), at::linear(input, weight.detach()));
  const double of_gradient = relative(at::matmul(low(direction).t(), low(input)), at::matmul(direction.t(), input));
  CHECK(number(own.notices[0], "error") == doctest::Approx(std::max(of_output, of_gradient)).epsilon(1e-6));
}

TEST_CASE("adaptive: a layer whose gradients overflow while it is measured stays in float32") {
  for (const std::string scale : {"64.0", "1099511627776.0"}) {  // 2^40 is out of float16's range
    const TemporaryFolder output;
    SmallRun run(from_toml({base,
                            "[precision]\nuse = \"adaptive\"\ncandidates = [\"fp16\"]\n"
                            "[scaler]\nuse = \"dynamic\"\ninit_scale = " +
                                scale + "\n"}),
                 output.path().string());
    make_16_bits_free(run);
    CHECK(policy_changes(run).empty() == (scale != "64.0"));
  }
}

TEST_CASE("adaptive: the option `attention` says which kernels of attention are measured" *
          doctest::test_suite("text")) {
  const auto candidates = [](const std::string& attention) {
    const TemporaryFolder output;
    SmallRun run(
        from_toml(
            {base, "[run]\nsteps = 2\n[task]\nuse = \"gpt\"\ndata = [\"" VERNIER_SOURCE_DIR
                   "/sdk/core/optim/include\"]\nlayers = 1\nheads = 2\nwidth = 16\ncontext = 16\nsample_bytes = 0\n"
                   "[precision]\nuse = \"adaptive\"\nattention = \"" +
                       attention + "\"\n"}),
        output.path().string());
    run.train();
    const auto seconds = run.wiring->precision->save().part("seconds");
    for (const auto& [work, times] : seconds.tensors) {
      if (says(work, "scaled_dot_product_attention")) return times.numel();
    }
    return std::int64_t{0};
  };
  CHECK(candidates("auto") == 4);  // two dtypes, two kernels
  CHECK(candidates("fused") == 2);
  CHECK(candidates("matmul") == 2);
}

TEST_CASE("adaptive: bad options are refused in one line") {
  const auto trouble = [](const std::string& options) {
    const TemporaryFolder output;
    return thrown_by([&] {
      SmallRun(from_toml({base, "[precision]\nuse = \"adaptive\"\n" + options}), output.path().string());
    });
  };
  CHECK(says(trouble("candidates = [\"bf17\"]").text, "`candidates` may name bf16 and fp16, and has \"bf17\""));
  CHECK(says(trouble("candidates = [\"fp16\"]").text, "needs a loss scaler"));
  const auto layer = trouble("[[precision.decided]]\nlayer = \"layer.0\"\nop = \"linear\"");
  CHECK(says(layer.text, "no layer of this model is \"layer.0\"; did you mean \"layers.0\"?"));
  CHECK(layer.kind == 2);
  CHECK(says(trouble("[[precision.decided]]\nlayer = \"layers.0\"\nop = \"relu\"").text,
             "`op` is none that is decided on: relu"));
}

}  // namespace adaptive_test
