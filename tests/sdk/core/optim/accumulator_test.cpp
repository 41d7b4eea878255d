// Accumulator: gradients of micro-batches are those of the whole batch, and an update comes after the last.
#include <doctest/doctest.h>
#include <torch/nn/functional/loss.h>
#include <torch/nn/modules/linear.h>
#include <vernier/accumulator.h>
#include <vernier/error.h>

#include "thrown.h"

namespace accumulator_test {

TEST_CASE("accumulator: the gradients of micro-batches are those of the batch") {
  torch::manual_seed(1);
  const auto inputs = torch::randn({12, 5}, torch::kFloat64), targets = torch::randn({12, 3}, torch::kFloat64);
  torch::nn::Linear model(5, 3);
  model->to(torch::kFloat64);
  const auto loss_of = [&](const torch::Tensor& x, const torch::Tensor& y) {
    return torch::nn::functional::mse_loss(model->forward(x), y);
  };
  loss_of(inputs, targets).backward();
  const auto whole = model->weight.grad().clone();
  for (const std::int64_t parts : {1, 2, 3, 4, 6, 12}) {
    CAPTURE(parts);
    model->zero_grad();
    vernier::Accumulator accumulator(parts);
    for (std::int64_t i = 0; i < parts; ++i) {
      const auto rows = 12 / parts;
      accumulator.share(loss_of(inputs.narrow(0, i * rows, rows), targets.narrow(0, i * rows, rows))).backward();
      CHECK(accumulator.should_update() == (i + 1 == parts));
    }
    CHECK(torch::allclose(model->weight.grad(), whole, 1e-12, 1e-14));
  }
}

TEST_CASE("accumulator: it goes on where it was saved, and refuses no micro-batch at all") {
  vernier::Accumulator first(3), second(3);
  CHECK_FALSE(first.should_update());
  CHECK_FALSE(first.should_update());
  second.load_state_dict(first.state_dict());
  CHECK(second.should_update());
  CHECK_FALSE(second.should_update());
  CHECK(says(thrown_by([] { vernier::Accumulator(0); }).text, "at least 1 micro-batch"));
}

}  // namespace accumulator_test
