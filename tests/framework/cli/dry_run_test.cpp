#include "tools/check/dry_run.h"

#include <ATen/ops/cross_entropy_loss.h>
#include <ATen/ops/layer_norm.h>
#include <ATen/ops/matmul.h>
#include <doctest/doctest.h>
#include <torch/nn/modules.h>

#include <algorithm>

#include "thrown.h"
#include "toy_run.h"

namespace dry_run_test {

using vernier::DryRun;

namespace {

// A task of one function over a model that the test makes.
class OneModel final : public toy::Task {
 public:
  using Loss = std::function<torch::Tensor(const vernier::Batch&)>;
  OneModel(std::shared_ptr<torch::nn::Module> model, Loss loss) : model_(std::move(model)), loss_(std::move(loss)) {}
  void prepare(vernier::Run& run) override { run.set_model(model_); }
  torch::Tensor loss(const vernier::Batch& micro_batch) override { return loss_(micro_batch); }

 private:
  std::shared_ptr<torch::nn::Module> model_;
  Loss loss_;
};

vernier::Table rules(const std::string& op, const char* use) {
  const vernier::Table rule = {{"op", {op, "test.toml:3"}}, {"use", {std::string(use), "test.toml:4"}}};
  return {{"rule", {vernier::Array{{rule, "test.toml:2"}}, "test.toml:2"}}};
}

struct Trial {
  Trial(std::shared_ptr<torch::nn::Module> model, OneModel::Loss loss, const std::string& precision,
        vernier::Table options = {}) {
    toy.wiring.task = std::make_unique<OneModel>(std::move(model), std::move(loss));
    toy.wiring.precision = make_plugin<vernier::Precision>("precision/" + precision, std::move(options));
    if (precision == "fp16") toy.wiring.scaler = make_plugin<vernier::Scaler>("scaler/dynamic");
  }
  DryRun run() {
    auto& trainer = toy.prepare();
    return vernier::dry_run(trainer, toy.wiring, toy.run);
  }
  std::string advice() {
    std::string text;
    for (const auto& line : vernier::advise(run(), std::nullopt)) text += line + "\n";
    return text;
  }
  toy::Toy toy;
};

template <class Module>
std::shared_ptr<torch::nn::Module> holding(const char* name, const Module& module) {
  auto model = std::make_shared<torch::nn::Module>();
  model->register_module(name, module);
  return model;
}

}  // namespace

TEST_CASE("dry run: the gradients of a step, and nothing that uses them") {
  toy::Toy tried, trained;
  std::vector<std::string> told;
  for (const auto event :
       {vernier::Event::RunBegin, vernier::Event::StepBegin, vernier::Event::GradientsReady, vernier::Event::StepEnd}) {
    tried.on(event, [&told, event](vernier::Run&) { told.push_back(name_of(event)); });
  }
  auto& trainer = tried.prepare();
  const auto before = tried.weights();
  const auto result = vernier::dry_run(trainer, tried.wiring, tried.run);
  const auto after = tried.weights();
  for (std::size_t i = 0; i < before.size(); ++i) CHECK(torch::equal(before[i], after[i]));
  CHECK(told == std::vector<std::string>{"StepBegin"});
  CHECK(tried.run.updates == 0);
  CHECK(tried.memory().steps.empty());

  std::map<std::string, torch::Tensor> expected;
  double loss = 0;
  trained.on(vernier::Event::GradientsReady, [&](vernier::Run& run) {
    for (const auto& parameter : run.parameters) expected[parameter.name] = parameter.master.grad().clone();
    loss = run.loss.item<double>();
  });
  auto& other = trained.prepare();
  other.step().step(trained.run);
  CHECK(result.loss == loss);
  CHECK(result.gradients.size() == expected.size());
  for (const auto& [name, gradient] : expected) CHECK(torch::equal(result.gradients.at(name), gradient));
  CHECK(result.memory.bytes("weights") == (12 + 8) * 4);
  CHECK_FALSE(result.is_low);
  CHECK(result.operations.front().op == "linear");
  CHECK(result.operations.front().weight_sizes == std::vector<std::int64_t>{4, 3});
}

TEST_CASE("dry run: what fails is reported as in the first step") {
  Trial wrong(
      holding("a", torch::nn::Linear(3, 2)),
      [](const vernier::Batch& micro_batch) {
        return at::matmul(micro_batch.tensors[0], torch::ones({7, 2})).sum();
      },
      "fp32");
  CHECK(says(thrown_by([&] { wrong.run(); }).text, "task/toy in step 1: "));
  torch::nn::Linear layer(3, 2);
  Trial unmatched(
      holding("a", layer),
      [layer](const vernier::Batch& micro_batch) mutable { return layer(micro_batch.tensors[0]).sum(); }, "bf16",
      rules("softmax", "fp32"));
  const auto refusal = thrown_by([&] { unmatched.run(); });
  CHECK(refusal.kind == 2);
  CHECK(says(refusal.text, "the model does not call softmax"));
}

TEST_CASE("advice: batch normalisation over micro-batches, over few values") {
  torch::nn::BatchNorm1d norm(3);
  const auto loss = [norm](const vernier::Batch& micro_batch) mutable {
    return norm(micro_batch.tensors[0]).square().sum();
  };
  Trial whole(holding("bn", norm), loss, "fp32");
  CHECK(whole.advice() ==
        "bn: batch normalisation over 6 values a channel is noise; use larger micro-batches, or group norm\n");
  torch::nn::BatchNorm1d other(3);
  Trial micro_batches(
      holding("bn", other),
      [other](const vernier::Batch& micro_batch) mutable {
        return other(micro_batch.tensors[0].unsqueeze(2).expand({-1, -1, 50})).square().sum();
      },
      "fp32");
  micro_batches.toy.wiring.accumulation = std::make_unique<toy::MicroBatches>(std::vector<std::int64_t>{4, 2});
  CHECK(micro_batches.advice() ==
        "bn: batch normalisation sees a micro-batch of 2 samples, not the batch of 6; use fewer micro-batches, or "
        "group norm\n");
}

TEST_CASE("advice: an LSTM trains beside float16 where a rule keeps it in float32") {
  torch::nn::LSTM lstm(torch::nn::LSTMOptions(3, 4));
  Trial trial(
      holding("memory", lstm),
      [lstm](const vernier::Batch& micro_batch) mutable {
        return std::get<0>(lstm(micro_batch.tensors[0].unsqueeze(0))).sum();
      },
      "fp16", rules("lstm", "fp32"));
  CHECK(std::isfinite(trial.run().loss));
}

TEST_CASE("advice: many classes in 16 bits, and what comes near the end of float16") {
  torch::nn::Linear head(torch::nn::LinearOptions(3, 10000).bias(false));
  const auto loss = [head](const vernier::Batch& micro_batch) mutable {
    return at::cross_entropy_loss(head(micro_batch.tensors[0]), torch::zeros({micro_batch.samples}, torch::kInt64));
  };
  Trial wide(holding("head", head), loss, "fp16");
  CHECK(wide.advice().starts_with(
      "cross_entropy_loss out of head: 10000 logits in float16 overflow at 65504 and differ in two "
      "or three digits only; [[precision.rule]] match = \"head\" use = \"fp32\"\n"));
  Trial in_float32(holding("head", head), loss, "fp32");
  CHECK(in_float32.advice().empty());

  torch::nn::Linear large(torch::nn::LinearOptions(3, 16).bias(false));
  torch::nn::init::constant_(large->weight, 20000.0);
  const auto sum = [large](const vernier::Batch& micro_batch) mutable {
    return large(torch::ones({micro_batch.samples, 3})).mean();
  };
  Trial near(holding("large", large), sum, "fp16");
  CHECK(says(near.advice(),
             "large (matmul): reaches 60000 in float16, which ends at 65504; [[precision.rule]] match = \"large\" "
             "use = \"bf16\"\n"));
  torch::nn::init::constant_(large->weight, 30000.0);
  Trial over(holding("large", large), sum, "fp16");
  const auto text = over.advice();
  CHECK(says(text, "large (matmul): is not finite in float16"));
  CHECK(says(text, "the loss of the first batch is not a finite number\n"));
}

TEST_CASE("advice: norms after sums in 16 bits, tables without masters, shapes for fp8") {
  auto model = std::make_shared<torch::nn::Module>();
  torch::nn::Linear a(torch::nn::LinearOptions(3, 32).bias(false));
  torch::nn::LayerNorm norm(torch::nn::LayerNormOptions({32}));
  model->register_module("a", a);
  model->register_module("h", torch::nn::ModuleList(norm));
  const auto loss = [a, norm](const vernier::Batch& micro_batch) mutable {
    const auto x = a(micro_batch.tensors[0]);
    return norm(x + x).square().mean();
  };
  Trial bf16(model, loss, "bf16");
  const auto advice = bf16.advice();
  CHECK(says(advice,
             "h.*: normalises sums that were made in bfloat16; deep networks lose what early layers added; "
             "[[precision.rule]] op = \"add\" use = \"fp32\"\n"));
  CHECK(says(advice, "a: fp8 takes sides that are multiples of 16, and 32x3 is not; it would stay in 16 bits\n"));
  Trial remedied(model, loss, "bf16", rules("add", "fp32"));
  CHECK_FALSE(says(remedied.advice(), "normalises sums"));

  torch::nn::Embedding table(10, 4);
  table->to(torch::kBFloat16);
  Trial low(
      holding("wte", table),
      [table](const vernier::Batch& micro_batch) mutable {
        return table(torch::arange(micro_batch.samples)).to(torch::kFloat32).square().mean();
      },
      "fp32");
  CHECK(says(low.advice(), "wte: an embedding's 16-bit weights without float32 masters"));
}

TEST_CASE("advice: layers whose gradients are far from those in float32 are named") {
  DryRun low, high;
  low.gradients = {
      {"h.0.a", torch::tensor({1.0F, 1.0F})}, {"h.1.a", torch::tensor({1.5F, 0.5F})}, {"b", torch::tensor({1.01F})}};
  high.gradients = {
      {"h.0.a", torch::tensor({1.0F, 1.0F})}, {"h.1.a", torch::tensor({1.0F, 1.0F})}, {"b", torch::tensor({1.0F})}};
  low.loss = high.loss = 1;
  CHECK(vernier::advise(low, high) ==
        std::vector<std::string>{"h.*.a: gradients of this batch are up to 50 % off those in float32"});
  low.is_random = true;  // dropout drew other masks, perhaps
  CHECK(vernier::advise(low, high).empty());
}

}  // namespace dry_run_test
