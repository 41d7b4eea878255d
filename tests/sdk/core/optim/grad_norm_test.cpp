#include <doctest/doctest.h>
#include <torch/nn/utils/clip_grad.h>
#include <vernier/draft/model_parts.h>
#include <vernier/error.h>
#include <vernier/grad_norm.h>

#include <cmath>
#include <limits>

namespace grad_norm_test {

using vernier::clip_grad_norm_;
using vernier::grad_norm;
using Gradients = std::vector<torch::Tensor>;

namespace {

constexpr double infinity = std::numeric_limits<double>::infinity();

Gradients random_gradients() {
  torch::manual_seed(7);
  return {torch::randn({17, 33}), torch::randn({5}), torch::randn({}), torch::randn({4, 3}).t(), torch::empty({0, 3})};
}

double exact_norm(const Gradients& gradients, double p) {
  Gradients flat;
  for (const auto& gradient : gradients) flat.push_back(gradient.to(torch::kFloat64).flatten());
  return torch::cat(flat).norm(p).item<double>();
}

torch::Tensor exact_norm_of(const Gradients& gradients, double p) {
  return torch::full({1}, gradients.empty() || gradients[0].numel() == 0 ? 0.0 : exact_norm(gradients, p));
}

}  // namespace

TEST_CASE("grad_norm: the norm over all elements of all tensors") {
  for (const double p : {0.5, 1.0, 2.0, 3.0, infinity}) {
    CAPTURE(p);
    const auto norm = grad_norm(random_gradients(), p);
    CHECK((norm.scalar_type() == torch::kFloat32));
    CHECK(norm.dim() == 0);
    CHECK(norm.item<double>() == doctest::Approx(exact_norm(random_gradients(), p)).epsilon(1e-6));
  }
}

TEST_CASE("grad_norm: dtypes may differ, the widest counts") {
  auto gradients = random_gradients();
  gradients[0] = gradients[0].to(torch::kBFloat16);
  gradients[1] = gradients[1].to(torch::kHalf);
  CHECK((grad_norm(gradients).scalar_type() == torch::kFloat32));
  CHECK(grad_norm(gradients).item<double>() == doctest::Approx(exact_norm(gradients, 2)).epsilon(1e-6));
  gradients[2] = gradients[2].to(torch::kDouble);
  CHECK((grad_norm(gradients).scalar_type() == torch::kFloat64));
}

TEST_CASE("grad_norm: float16 does not overflow") {
  const Gradients gradients{torch::full({100}, 60000, torch::kHalf), torch::full({100}, 60000, torch::kHalf)};
  CHECK(grad_norm(gradients).item<double>() == doctest::Approx(exact_norm(gradients, 2)).epsilon(1e-6));
}

TEST_CASE("grad_norm: a rank with a part of no elements, or of another dtype, has the norm of all ranks") {
  const std::vector<Gradients> own = {
      {}, {torch::empty({0, 3})}, {torch::full({4}, 2.0)}, {torch::full({4}, 2.0, torch::kFloat64)}};
  for (const auto& gradients : own) {
    for (const double p : {1.0, 2.0, infinity}) {
      const double expected = exact_norm({torch::cat({exact_norm_of(gradients, p), torch::full({1}, 5.0)})}, p);
      const vernier::draft::ModelParts parts(0, 2, [](const torch::Tensor& numbers) {
        REQUIRE((numbers.scalar_type() == torch::kFloat64));  // ranks can only sum what has one dtype
        numbers[1] += 5;                                      // the norm of rank 1
      });
      CHECK(grad_norm(gradients, p).item<double>() == doctest::Approx(expected).epsilon(1e-6));
      CHECK(clip_grad_norm_(gradients, 100.0, p).item<double>() == doctest::Approx(expected).epsilon(1e-6));
    }
  }
}

TEST_CASE("grad_norm: nothing has the norm 0") {
  CHECK(grad_norm({}).item<float>() == 0);
  CHECK(grad_norm({torch::empty({0})}, infinity).item<float>() == 0);
  CHECK(clip_grad_norm_({}, 1.0).item<float>() == 0);
}

TEST_CASE("grad_norm: refuses orders and layouts that it cannot do") {
  for (const double p : {0.0, -1.0, std::nan("")}) CHECK_THROWS_AS(grad_norm(random_gradients(), p), vernier::Error);
  CHECK_THROWS_AS(grad_norm({torch::eye(3).to_sparse()}), vernier::Error);
}

TEST_CASE("clip_grad_norm_: as torch::nn::utils::clip_grad_norm_") {
  for (const double p : {1.0, 2.0, 3.0, infinity}) {
    for (const double max_norm : {1e-3, 0.7, 10.0, 1e6}) {
      CAPTURE(p);
      CAPTURE(max_norm);
      auto ours = random_gradients(), theirs = random_gradients();
      Gradients parameters;
      for (auto& gradient : theirs) {
        if (gradient.numel() == 0) continue;  // LibTorch's cannot take the maximum of nothing
        parameters.push_back(torch::zeros_like(gradient).requires_grad_());
        parameters.back().mutable_grad() = gradient;
      }
      const auto norm = clip_grad_norm_(ours, max_norm, p);
      CHECK(norm.item<double>() == doctest::Approx(torch::nn::utils::clip_grad_norm_(parameters, max_norm, p)));
      for (std::size_t i = 0; i < ours.size(); ++i) CHECK(torch::allclose(ours[i], theirs[i], 1e-6, 0));
    }
  }
}

TEST_CASE("clip_grad_norm_: the bits are those of PyTorch's operators") {
  for (const auto dtype : {torch::kFloat32, torch::kFloat64}) {
    torch::manual_seed(11);
    for (int i = 0; i < 200; ++i) {
      const auto before = torch::randn({40}, dtype) * std::exp2(i % 40 - 20);
      const double max_norm = std::exp2(i % 7 - 3) / 3;
      const auto factor = ((grad_norm({before}) + 1e-6).reciprocal() * max_norm).clamp_max(1.0);
      const auto clipped = before.clone();
      clip_grad_norm_({clipped}, max_norm);
      CHECK(torch::equal(clipped, before * factor));
    }
  }
}

TEST_CASE("clip_grad_norm_: dtypes may differ") {
  const Gradients before{torch::full({64}, 3.0, torch::kHalf), torch::full({64}, 3.0, torch::kBFloat16),
                         torch::full({64}, 3.0)};
  Gradients after;
  for (const auto& gradient : before) after.push_back(gradient.clone());
  const auto norm = clip_grad_norm_(after, 1.0).item<double>();
  CHECK(norm == doctest::Approx(3 * std::sqrt(192.0)));
  CHECK(exact_norm(after, 2) == doctest::Approx(1.0).epsilon(2e-3));
  for (std::size_t i = 0; i < 3; ++i) CHECK((after[i].scalar_type() == before[i].scalar_type()));
}

TEST_CASE("clip_grad_norm_: what is not finite spreads as in PyTorch") {
  const Gradients with_nan{torch::tensor({1.f, NAN}), torch::ones({2})};
  CHECK(clip_grad_norm_(with_nan, 1.0).isnan().item<bool>());
  CHECK(torch::cat(with_nan).isnan().all().item<bool>());
  const Gradients with_inf{torch::tensor({1.f, INFINITY}), torch::ones({2})};
  CHECK(clip_grad_norm_(with_inf, 1.0).isinf().item<bool>());
  const auto clipped = torch::cat(with_inf);
  CHECK(clipped[1].isnan().item<bool>());
  CHECK(torch::cat({clipped.slice(0, 0, 1), clipped.slice(0, 2)}).eq(0).all().item<bool>());
}

}  // namespace grad_norm_test
