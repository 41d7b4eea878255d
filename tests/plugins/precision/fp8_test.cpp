// precision/fp8, and rules with use = "fp8" in other policies.
#include <ATen/ops/linear.h>
#include <doctest/doctest.h>
#include <vernier/error.h>
#include <vernier/float8_linear.h>
#include <vernier/host.h>

#include "log_lines.h"
#include "plugin_library.h"
#include "small_run.h"
#include "thrown.h"

namespace fp8_test {

using vernier::Precision;

namespace {

const std::string recipes[] = {"delayed", "current", "rowwise", "rowwise_with_high_precision_grad_weight", "block"};

struct Linear final : torch::nn::Module {
  Linear(std::int64_t inputs, std::int64_t outputs)
      : weight(register_parameter("weight", torch::randn({outputs, inputs}).div_(8))),
        bias(register_parameter("bias", torch::randn({outputs}))) {}
  torch::Tensor forward(const torch::Tensor& x) const { return at::linear(x, weight, bias); }
  torch::Tensor weight, bias;
};

// Five linear layers; the fourth is of unfit shape.
struct Model final : torch::nn::Module {
  Model() {
    const std::pair<int, int> widths[] = {{16, 32}, {32, 32}, {32, 40}, {40, 16}, {16, 16}};
    const char* names[] = {"in", "one", "two", "three", "out"};
    for (int i = 0; i < 5; ++i)
      layers.push_back(register_module(names[i], std::make_shared<Linear>(widths[i].first, widths[i].second)));
  }
  torch::Tensor forward(torch::Tensor x) const {
    for (const auto& layer : layers) x = layer->forward(x);
    return x;
  }
  std::vector<std::shared_ptr<Linear>> layers;
};

std::vector<std::string>& told() {
  static std::vector<std::string> lines;
  return lines;
}

struct Policy {
  explicit Policy(const std::string& name, vernier::Table options = {})
      : plugin(make_plugin<Precision>("precision/" + name, std::move(options))) {
    torch::manual_seed(3);
    model = std::make_shared<Model>();
    run.model = model;
    input = torch::randn({4, 16});
    told().clear();
    vernier::set_log_sink([](vernier::Level, const std::string&, const std::string& text) { told().push_back(text); });
    vernier::HostApi::attach(bus, *plugin, /*monitor=*/false);
    plugin->prepare(run);
  }
  ~Policy() { vernier::set_log_sink(nullptr); }
  void end_update() {
    plugin->commit(run);
    vernier::HostApi::emit(bus, vernier::Event::UpdateDone, run);
  }
  torch::Tensor forward() {
    return plugin->forward([this] { return model->forward(input); });
  }
  // One layer alone, as the policy computes it.
  torch::Tensor of(int layer) {
    torch::manual_seed(layer);
    const auto x = torch::randn({4, model->layers[static_cast<std::size_t>(layer)]->weight.size(1)});
    return plugin->forward([&] { return model->layers[static_cast<std::size_t>(layer)]->forward(x); });
  }
  bool is_in_bf16(int layer) {
    const auto& of_model = *model->layers[static_cast<std::size_t>(layer)];
    torch::manual_seed(layer);
    const auto x = torch::randn({4, of_model.weight.size(1)}).to(torch::kBFloat16);
    return torch::equal(of(layer),
                        at::linear(x, of_model.weight.to(torch::kBFloat16), of_model.bias.to(torch::kBFloat16)));
  }
  vernier::TrainerRun run;
  std::shared_ptr<Model> model;
  std::unique_ptr<Precision> plugin;
  vernier::Bus bus;
  torch::Tensor input;
};

vernier::Value value(auto of) {
  return {std::move(of), "run.toml:3"};
}
vernier::Value rule(const std::string& match, const std::string& use) {
  return value(vernier::Array{value(vernier::Table{{"match", value(match)}, {"use", value(use)}})});
}

// The loss after some steps of a run from TOML.
double last_loss(const std::vector<std::string>& texts) {
  const NoLog no_log;
  const TemporaryFolder output;
  SmallRun run(from_toml(texts), output.path().string());
  run.train();
  return run.run.loss.item<double>();
}

}  // namespace

TEST_CASE("fp8: the first update is in bf16, and reports which layers are first and last; the others are in fp8") {
  Policy policy("fp8", {{"recipe", value(std::string("current"))}});
  CHECK_FALSE(policy.plugin->needs_scaler());
  CHECK(policy.plugin->emulated() == "fp8");
  Policy bf16("bf16");
  CHECK(torch::equal(policy.forward(), bf16.forward()));
  CHECK(torch::equal(policy.forward(), bf16.forward()));  // the next micro-batch
  policy.end_update();
  CHECK_FALSE(torch::equal(policy.forward(), bf16.forward()));
  CHECK(policy.is_in_bf16(0));
  CHECK_FALSE(policy.is_in_bf16(1));
  CHECK(policy.is_in_bf16(2));
  CHECK(policy.is_in_bf16(3));
  CHECK(policy.is_in_bf16(4));
  torch::manual_seed(1);
  vernier::Float8Linear layer(vernier::float8_recipe("current"));
  CHECK(torch::equal(policy.of(1), layer.forward((torch::manual_seed(1), torch::randn({4, 32})),
                                                 policy.model->layers[1]->weight, policy.model->layers[1]->bias)));
}

TEST_CASE("fp8: one line says which layers stay in bf16, and why") {
  Policy policy("fp8");
  policy.forward();
  policy.end_update();
  CHECK(told().empty());
  for (int i = 0; i < 3; ++i) policy.forward();
  REQUIRE(told().size() == 1);
  CHECK(
      told()[0] ==
      "delayed fp8 in 1 layer; in bf16 stay in (the first), out (the last), three (40 to 16, not multiples of 16), two "
      "(32 to 40, not multiples of 16); emulated on this CPU: the same numbers, but slower than bf16");
}

TEST_CASE("fp8: with first_last_in_bf16 = false all layers that fit are in fp8, at once") {
  Policy policy("fp8", {{"first_last_in_bf16", value(false)}});
  for (int layer = 0; layer < 5; ++layer) CHECK(policy.is_in_bf16(layer) == (layer == 2 || layer == 3));
}

TEST_CASE("fp8: power_of_two_scales changes how a layer rounds; auto leaves the recipe's own") {
  const auto computed = [](const std::string& powers) {
    Policy policy("fp8", {{"first_last_in_bf16", value(false)},
                          {"recipe", value(std::string("current"))},
                          {"power_of_two_scales", value(powers)}});
    return policy.of(1);
  };
  CHECK(torch::equal(computed("auto"), computed("no")));
  CHECK_FALSE(torch::equal(computed("auto"), computed("yes")));
}

TEST_CASE("fp8: what is evaluated before the first update is in bf16 and teaches nothing") {
  Policy policy("fp8");
  {
    const torch::NoGradGuard no_grad;
    CHECK(policy.is_in_bf16(1));
  }
  policy.forward();
  policy.end_update();
  policy.forward();
  CHECK(told()[0].find("in (the first), out (the last)") != std::string::npos);
}

TEST_CASE("fp8: rules take layers in and out") {
  Policy out("fp8", {{"first_last_in_bf16", value(false)}, {"rule", rule("one", "bf16")}});
  CHECK(out.is_in_bf16(1));
  CHECK_FALSE(out.is_in_bf16(4));
  Policy in("bf16", {{"rule", rule("o*", "fp8")}});  // one and out
  CHECK(in.plugin->emulated() == "fp8");
  in.forward();
  CHECK(in.is_in_bf16(0));
  CHECK_FALSE(in.is_in_bf16(1));
  CHECK_FALSE(in.is_in_bf16(4));
  Policy first("fp8", {{"rule", rule("in", "fp8")}});
  first.forward();
  first.end_update();
  CHECK_FALSE(first.is_in_bf16(0));
  CHECK(first.is_in_bf16(4));
  Policy unfit("bf16", {{"rule", rule("two", "fp8")}});
  unfit.forward();
  CHECK(unfit.is_in_bf16(2));
  REQUIRE(told().size() == 1);
  CHECK(told()[0] == "delayed fp8 in 0 layers; in bf16 stay two (32 to 40, not multiples of 16)");
}

TEST_CASE("fp8: the history of a layer's weight is what its weight was") {
  Policy policy("fp8", {{"amax_history_len", value(std::int64_t{4})}, {"first_last_in_bf16", value(false)}});
  std::vector<float> largest;
  for (int update = 0; update < 6; ++update) {
    for (int micro_batch = 0; micro_batch < 2; ++micro_batch) policy.forward().sum().backward();
    largest.push_back(policy.model->layers[1]->weight.abs().max().item<float>());
    {
      const torch::NoGradGuard no_grad;
      policy.forward();  // validation leaves no trace
      policy.model->layers[1]->weight.mul_(0.9);
    }
    policy.plugin->commit(policy.run);  // an update of several passes calls it more often
    policy.end_update();
    const auto state = policy.plugin->save();
    const auto history = state.tensor("float8/layers/one/amax_history").select(1, 1);
    for (int back = 1; back < 4 && back <= update + 1; ++back)
      CHECK(history[4 - back].item<float>() == largest[largest.size() - static_cast<std::size_t>(back)]);
    float most = 0;
    for (std::size_t i = largest.size() > 4 ? largest.size() - 4 : 0; i < largest.size(); ++i)
      most = std::max(most, largest[i]);
    CHECK(state.tensor("float8/layers/one/scales")[1].item<float>() == 448 / most);
  }
}

TEST_CASE("fp8: what cannot be is refused before the first step") {
  const auto refusal = [](vernier::Table options) {
    return thrown_by([&] { make_plugin<Precision>("precision/fp8", std::move(options)); }).text;
  };
  const auto word = [](const char* text) { return value(std::string(text)); };
  CHECK(says(refusal({{"format", word("e5m2")}}),
             "run.toml:3: precision/fp8: `format` is refused: two bits of E5M2 are too few for weights"));
  CHECK(says(refusal({{"format", word("hybrid")}, {"recipe", word("block")}}),
             "`format` is refused: fp8 blocks are of E4M3 alone"));
  CHECK(says(refusal({{"amax_history_len", value(std::int64_t{4})}, {"recipe", word("current")}}),
             "`amax_history_len` is for recipe = \"delayed\", and it is current"));
  CHECK(says(
      refusal({{"rule", value(vernier::Array{value(vernier::Table{{"op", word("softmax")}, {"use", word("fp8")}})})}}),
      "`op` is \"softmax\", and fp8 is for linear layers"));
  const auto plugin = make_plugin<Precision>("precision/fp8");
  vernier::TrainerRun run;
  run.model = std::make_shared<Model>();
  run.device = torch::Device(torch::kMPS);
  CHECK(thrown_by([&] { plugin->prepare(run); }) ==
        configuration("precision in fp8 is for CUDA devices, not for mps; take bf16, or a CPU, where fp8 is emulated"));
}

TEST_CASE("fp8: a classifier ends where it does in bf16, with every recipe") {
  const std::string base =
      "[run]\nsteps = 200\n[task]\nuse = 'mlp'\nbatch_size = 32\nhidden = [64, 64, 64]\n[optimizer]\nuse = 'adamw'\n"
      "learning_rate = 0.003\n[checkpoint]\nuse = 'none'\n";
  const double bf16 = last_loss({base, "[precision]\nuse = 'bf16'\n"});
  CHECK(bf16 < 0.5);
  for (const auto& recipe : recipes) {
    CAPTURE(recipe);
    const double fp8 = last_loss({base, "[precision]\nuse = 'fp8'\nrecipe = '" + recipe + "'\n"});
    CHECK(fp8 != bf16);
    CHECK(std::abs(fp8 - bf16) < 0.1);
  }
}

TEST_CASE("fp8: a GPT learns as it does in bf16, with every recipe" * doctest::test_suite("text")) {
  const TemporaryFolder folder;
  std::string text;
  for (int i = 0; i < 2000; ++i) text += "line " + std::to_string(i * i) + '\n';
  const std::string base = "[run]\nsteps = 60\n[task]\nuse = 'gpt'\ndata = ['" + folder.write("text", text) +
                           "']\nlayers = 2\nheads = 2\nwidth = 32\ncontext = 32\nbatch_size = 8\nvalidation = 0\n"
                           "[optimizer]\nuse = 'adamw'\nlearning_rate = 0.01\n[checkpoint]\nuse = 'none'\n";
  const double bf16 = last_loss({base, "[precision]\nuse = 'bf16'\n"});
  CHECK(bf16 < 3);
  for (const auto& recipe : recipes) {
    CAPTURE(recipe);
    const double fp8 = last_loss({base, "[precision]\nuse = 'fp8'\nrecipe = '" + recipe + "'\n"});
    CHECK(fp8 != bf16);
    CHECK(std::abs(fp8 - bf16) < 0.1);
  }
}

}  // namespace fp8_test
