// Rows of numbers with words of different lengths, a network with dropout and a buffer, and held-out rows.
#include <ATen/core/grad_mode.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/linear.h>
#include <ATen/ops/rand.h>
#include <ATen/ops/zeros.h>
#include <torch/nn/modules/dropout.h>

#include "mutant.h"

namespace {

using torch::Tensor;
using vernier::Batch;

struct Network final : torch::nn::Module {
  Network() {
    weight = register_parameter("weight", torch::arange(6, torch::kFloat).cos().reshape({2, 3}));
    bias = register_parameter("bias", torch::zeros({2}));
    seen = register_buffer("seen", torch::zeros({1}));
    dropout = register_module("dropout", torch::nn::Dropout(0.1));
  }
  Tensor forward(const Tensor& x) {
    if (is_training()) {
      const torch::NoGradGuard no_grad;
      seen.add_(1);
    }
    return dropout->forward(at::linear(x.to(weight.scalar_type()), weight, bias)).sum(1);
  }
  Tensor weight, bias, seen;
  torch::nn::Dropout dropout{nullptr};
};

class Task final : public vernier::Task {
 public:
  explicit Task(vernier::Options& options) : mutant_(options) {}
  void prepare(vernier::Run& run) override { run.set_model(model_ = std::make_shared<Network>()); }
  Batch next() override {
    if (mutant_.is("draws_data")) place_ = static_cast<std::int64_t>(torch::rand({}).item<double>() * 1000);
    place_ += 1;
    return batch_of(place_, 8);
  }
  std::int64_t batches_per_epoch() const override { return mutant_.is("no_epoch") ? 0 : 10; }

  Tensor loss(const Batch& batch) override {
    if (mutant_.is("refuses_parts") && batch.samples < 8) {
      vernier::refuse("task/mutant: samples are each other's negatives; set accumulation.micro_batches to 1", id());
    }
    if (mutant_.is("asks_mode") && !model_->is_training())
      return batch.tensors[0].sum();  // predictions of another kind
    if (mutant_.is("sees_rank") && batch.samples % 2 == 1) return mean_of(batch) * 1.01;
    if (mutant_.is("sums")) return mean_of(batch) * static_cast<double>(batch.samples);
    if (mutant_.is("divides_by_eight")) return mean_of(batch) * (static_cast<double>(batch.samples) / 8);
    return mean_of(batch);
  }
  std::optional<double> weight_of(const Batch& part) const override {
    if (mutant_.is("mean_of_words")) return std::nullopt;
    if (mutant_.is("weighs_some") && part.samples == 2) return std::nullopt;
    return part.samples == 0 ? 0.0 : part.tensors[1].sum().item<double>();
  }

  std::optional<std::vector<vernier::MetricInfo>> measures() const override {
    return std::vector<vernier::MetricInfo>{{"validation_loss", vernier::Better::lower}};
  }
  Tensor validate(vernier::Run& run) override {
    if (mutant_.is("validates_nothing")) return {};
    if (mutant_.is("validation_trains")) model_->train();
    if (mutant_.is("validation_draws")) (void)torch::rand({});
    if (mutant_.is("validation_moves_weights")) model_->weight.mul_(1.001);
    if (mutant_.is("validation_moves_buffer")) model_->seen.add_(1);
    if (mutant_.is("validation_drops_gradients")) model_->zero_grad();
    if (mutant_.is("validation_moves_data")) place_ += 1;
    if (mutant_.is("validation_differs")) return mean_of(batch_of(1000 + validations_++, 8));
    if (mutant_.is("validation_backward")) {
      const at::AutoGradMode with_gradients(true);
      mean_of(batch_of(1000, 8)).backward();
    }
    return mean_of(batch_of(1000, 8));
  }
  vernier::State save() const override {
    vernier::State state;
    if (!mutant_.is("forgets_place")) state.put("place", place_);
    return state;
  }
  void load(const vernier::State& state) override {
    if (state.has("place")) place_ = state.integer("place") + (mutant_.is("loses_a_batch") ? 1 : 0);
  }

 private:
  // Row i has 1 to 4 words, by its place in the batch.
  static Batch batch_of(std::int64_t number, std::int64_t rows) {
    const auto x = (torch::arange(rows * 3, torch::kFloat) + static_cast<double>(number)).sin().reshape({rows, 3});
    return {{x, torch::arange(rows, torch::kFloat).remainder(4).add(1)}, rows};
  }
  Tensor mean_of(const Batch& batch) {
    const auto error = (model_->forward(batch.tensors[0]) - batch.tensors[0].square().sum(1)).square();
    return (error * batch.tensors[1]).sum() / batch.tensors[1].sum();
  }

  Mutant mutant_;
  std::int64_t place_ = 0, validations_ = 0;
  std::shared_ptr<Network> model_;
};

}  // namespace

VERNIER_PLUGIN(Task, "mutant", "1.0.0")
