#include <ATen/ops/scaled_dot_product_attention.h>
#include <doctest/doctest.h>
#include <torch/csrc/autograd/autograd.h>
#include <torch/types.h>
#include <torch/utils.h>
#include <vernier/attention.h>

#include <cmath>

namespace attention_test {

// LibTorch's own attention is the oracle.
TEST_CASE("attention: by matmul gives what LibTorch's kernel gives, outputs and gradients, in float64") {
  torch::manual_seed(4);
  for (int round = 0; round < 40; ++round) {
    const auto random = [](std::int64_t low, std::int64_t high) {
      return torch::randint(low, high + 1, {}).item<std::int64_t>();
    };
    const auto batch = random(1, 3), heads = random(1, 3), length = random(1, 9), others = random(1, 9),
               width = random(1, 8);
    const auto tensor = [](std::vector<std::int64_t> shape) {
      return torch::randn(shape, torch::kFloat64).requires_grad_();
    };
    const auto q = tensor({batch, heads, length, width}), k = tensor({batch, heads, others, width}),
               v = tensor({batch, heads, others, width});
    const int kind = round % 4;
    torch::Tensor mask;
    if (kind == 1) mask = torch::rand({length, others}) > 0.5;  // rows that may look at nothing included
    if (kind == 2) mask = torch::randn({batch, 1, length, others}, torch::kFloat64);
    const bool causal = kind == 3;
    const std::optional<double> scale = round % 3 == 0 ? std::optional(0.3) : std::nullopt;
    CAPTURE(kind);
    const auto expected = at::scaled_dot_product_attention(q, k, v, mask.defined() ? std::optional(mask) : std::nullopt,
                                                           0.0, causal, scale);
    const auto got = vernier::attention_by_matmul(q, k, v, mask, 0.0, causal, scale);
    CHECK(torch::allclose(got, expected, 1e-10, 1e-12));
    const auto direction = torch::randn_like(expected);
    const auto expected_gradients = torch::autograd::grad({expected}, {q, k, v}, {direction});
    const auto gradients = torch::autograd::grad({got}, {q, k, v}, {direction});
    for (std::size_t i = 0; i < gradients.size(); ++i)
      CHECK(torch::allclose(gradients[i], expected_gradients[i], 1e-9, 1e-12));
  }
}

TEST_CASE("attention: dropout leaves weights out at its rate and keeps the mean") {
  torch::manual_seed(5);
  const auto q = torch::zeros({1, 1, 400, 4}), v = torch::ones({1, 1, 400, 1});
  const auto y = vernier::attention_by_matmul(q, q, v, {}, 0.25);
  CHECK(y.mean().item<double>() == doctest::Approx(1).epsilon(0.01));
  CHECK(y.std().item<double>() == doctest::Approx(std::sqrt(0.25 / 0.75 / 400)).epsilon(0.2));
}

}  // namespace attention_test
