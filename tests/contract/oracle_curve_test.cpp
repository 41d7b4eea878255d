// Fifty steps of a small GPT, by the trainer and the product's plugins, are those of Python's torch: the procedure and
// the tolerances stand in tests/oracles/README.md.
#include <ATen/ops/cross_entropy_loss.h>
#include <doctest/doctest.h>

#include <cmath>
#include <map>

#include "oracle.h"
#include "task/gpt/model.h"
#include "toy_run.h"

using vernier::Event;
using vernier::Run;
using vernier::Table;

namespace {

constexpr std::int64_t steps = 50, context = 32;

// The recorded windows in the recorded order, on the recorded weights.
class Recorded final : public vernier::Task {
 public:
  explicit Recorded(const Oracle& oracle)
      : oracle_(oracle), windows_(oracle["text"].to(torch::kInt64).unfold(0, context + 1, 1)) {
    set_id("task/recorded");
  }
  void prepare(Run& run) override {
    gpt::Shape shape;
    shape.layers = 3, shape.heads = 4, shape.width = 48, shape.context = context;
    run.set_model(network_ = std::make_shared<gpt::Network>(shape, 1));
    const torch::NoGradGuard no_grad;
    for (auto& entry : network_->named_parameters()) entry.value().copy_(oracle_["start." + entry.key()]);
  }
  vernier::Batch next() override {
    const auto rows = windows_.index_select(0, oracle_["positions"][next_++]);
    return {{rows.narrow(1, 0, context).contiguous(), rows.narrow(1, 1, context).contiguous()}, 4, 4 * context};
  }
  std::int64_t batches_per_epoch() const override { return steps; }
  torch::Tensor loss(const vernier::Batch& micro_batch) override {
    const auto logits = network_->forward(micro_batch.tensors[0]);
    computed_in = logits.scalar_type();
    return at::cross_entropy_loss(logits.view({-1, gpt::vocabulary}), micro_batch.tensors[1].reshape(-1));
  }
  torch::ScalarType computed_in = torch::kDouble;

 private:
  const Oracle& oracle_;
  torch::Tensor windows_;
  std::shared_ptr<gpt::Network> network_;
  std::int64_t next_ = 0;
};

// By name, as the recorded norms are sorted.
torch::Tensor norms(const std::vector<vernier::Parameter>& parameters, bool of_gradients) {
  std::map<std::string, double> sorted;
  for (const auto& [name, model, master, frozen, owned] : parameters) {
    const auto tensor = of_gradients ? master.grad() : master.detach();
    sorted[name] = tensor.to(torch::kDouble).norm().item<double>();
  }
  std::vector<double> all;
  for (const auto& [name, norm] : sorted) all.push_back(norm);
  return torch::tensor(all, torch::kDouble);
}

vernier::Value value(double data) {
  return {data, "test.toml:1"};
}
vernier::Value value(int data) {
  return {std::int64_t{data}, "test.toml:1"};
}

struct Curve {
  const char* precision;
  torch::ScalarType computed_in;
  double loss, grad_norms, final_norms;  // tolerances
};
constexpr Curve fp32 = {"fp32", torch::kFloat32, 1e-5, 1e-5, 1e-5}, bf16 = {"bf16", torch::kBFloat16, 1e-2, 1e-2, 2e-2},
                fp16 = {"fp16", torch::kFloat16, 5e-3, 1e-3, 1e-2};

struct Trained {
  std::vector<double> losses, scales, found_infs;
  std::vector<std::int64_t> skipped;  // by the notices
  torch::Tensor first_norms, final_norms;
  std::int64_t updates = 0;
  torch::ScalarType computed_in = torch::kDouble;
};

// With a scaler's options: scaler/dynamic.
Trained train(const Oracle& oracle, const Curve& curve, int micro_batches = 1,
              const std::optional<Table>& scaler = {}) {
  toy::Toy toy;
  toy.wiring.task = std::make_unique<Recorded>(oracle);
  toy.wiring.precision = make_plugin<vernier::Precision>(std::string("precision/") + curve.precision);
  if (scaler) toy.wiring.scaler = make_plugin<vernier::Scaler>("scaler/dynamic", *scaler);
  toy.wiring.accumulation =
      make_plugin<vernier::Accumulation>("accumulation/fixed", {{"micro_batches", value(micro_batches)}});
  toy.wiring.optimizer = make_plugin<vernier::Optimizer>("optimizer/adamw", {{"learning_rate", value(1e-3)},
                                                                             {"beta1", value(0.9)},
                                                                             {"beta2", value(0.95)},
                                                                             {"eps", value(1e-8)},
                                                                             {"weight_decay", value(0.1)}});
  toy.run.steps = steps;
  Trained trained;
  toy.on(Event::GradientsReady, [&](Run& run) {
    run.gradients();  // divided by what the scaler left to the optimizer
    if (run.step == 0) trained.first_norms = norms(run.parameters, true);
    if (scaler && run.step > 0) CHECK(run.metrics.value("scale") == trained.scales.back());
  });
  toy.on(Event::StepEnd, [&](Run& run) {
    trained.losses.push_back(run.loss.item<double>());
    for (const auto& notice : run.notices) {
      if (notice.name == "step_skipped") trained.skipped.push_back(run.step - 1);
    }
    if (!scaler) return;
    trained.scales.push_back(toy.wiring.scaler->save().real("scale"));
    trained.found_infs.push_back(run.found_inf.item<double>());
  });
  toy.prepare().train(toy.run);
  trained.final_norms = norms(toy.run.parameters, false);
  trained.updates = toy.run.updates;
  trained.computed_in = static_cast<const Recorded&>(*toy.wiring.task).computed_in;
  return trained;
}

std::vector<double> numbers(const torch::Tensor& recorded) {
  return {recorded.const_data_ptr<double>(), recorded.const_data_ptr<double>() + recorded.numel()};
}

void check_losses(const std::vector<double>& losses, const torch::Tensor& recorded, double tolerance) {
  const auto expected = numbers(recorded);
  REQUIRE(losses.size() == steps);
  REQUIRE(expected.size() == steps);
  for (std::size_t step = 0; step < losses.size(); ++step) {
    CAPTURE(step);
    CHECK(std::abs(losses[step] - expected[step]) <= tolerance * expected[step]);
  }
}

// All that is recorded of a curve.
Trained follow(const Oracle& oracle, const std::string& name, const Curve& curve, int micro_batches = 1,
               const std::optional<Table>& scaler = {}) {
  const auto trained = train(oracle, curve, micro_batches, scaler);
  CHECK((trained.computed_in == curve.computed_in));  // the tolerances alone would pass what was never cast
  check_losses(trained.losses, oracle[name + ".loss"], curve.loss);
  REQUIRE(trained.final_norms.numel() == 40);
  CHECK(distance(trained.final_norms, oracle[name + ".final_norms"]) <= curve.final_norms);
  if (oracle.has(name + ".grad_norms_1")) {
    CHECK(distance(trained.first_norms, oracle[name + ".grad_norms_1"]) <= curve.grad_norms);
  }
  if (scaler) {
    CHECK(trained.scales == numbers(oracle[name + ".scale"]));
    CHECK(trained.found_infs == numbers(oracle[name + ".found_inf"]));
  }
  CHECK(trained.updates == steps - std::ssize(trained.skipped));
  return trained;
}

}  // namespace

TEST_CASE("oracle curve: float32 in one micro-batch") {
  const Oracle oracle("gpt_curve");
  CHECK(follow(oracle, "fp32", fp32).skipped.empty());
}

TEST_CASE("oracle curve: float32 in four micro-batches, near that of one micro-batch too") {
  const Oracle oracle("gpt_curve");
  const auto trained = follow(oracle, "fp32_pieces", fp32, 4);
  check_losses(trained.losses, oracle["fp32.loss"], 1e-5);
  CHECK(trained.skipped.empty());
}

TEST_CASE("oracle curve: bfloat16") {
  const Oracle oracle("gpt_curve");
  const auto trained = follow(oracle, "bf16", bf16);
  check_losses(trained.losses, oracle["fp32.loss"], 1e-2);
  CHECK(trained.skipped.empty());
}

TEST_CASE("oracle curve: float16 with a scaler that has nothing to do") {
  const Oracle oracle("gpt_curve");
  const auto trained = follow(oracle, "fp16", fp16, 1, Table{});
  check_losses(trained.losses, oracle["fp32.loss"], 5e-3);
  CHECK(trained.skipped.empty());
}

TEST_CASE("oracle curve: float16 with a scale that is too high skips the steps that Python's does") {
  const Oracle oracle("gpt_curve");
  const auto trained =
      follow(oracle, "fp16_skips", fp16, 1, Table{{"init_scale", value(1.3e6)}, {"growth_interval", value(6)}});
  CHECK(trained.skipped == std::vector<std::int64_t>{0, 1, 2, 3, 11, 24, 31, 39});
  CHECK(trained.updates == 42);
}
