// check_amp_compatibility(): what it names is what autocast and O2 leave wide.
#include <ATen/ATen.h>
#include <doctest/doctest.h>
#include <torch/nn/functional/loss.h>
#include <torch/nn/modules/batchnorm.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/modules/conv.h>
#include <torch/nn/modules/embedding.h>
#include <torch/nn/modules/linear.h>
#include <vernier/amp_compatibility.h>
#include <vernier/error.h>

#include <ostream>

namespace vernier {
static std::ostream& operator<<(std::ostream& out, const AmpFinding& finding) {
  return out << finding.layer << ": " << finding.why;
}
}  // namespace vernier

namespace amp_compatibility_test {

using Findings = std::vector<vernier::AmpFinding>;

TEST_CASE("amp compatibility: layers and operations that stay wide are named once, with the reason") {
  torch::nn::Sequential plain(torch::nn::Linear(4, 8), torch::nn::Linear(8, 2));
  const auto x = at::randn({3, 4});
  CHECK(vernier::check_amp_compatibility(*plain, [&] { plain->forward(x); }) == Findings{});

  torch::nn::Sequential words(torch::nn::Embedding(10, 4), torch::nn::Linear(4, 2));
  const auto tokens = at::randint(10, {3, 5});
  CHECK(vernier::check_amp_compatibility(*words, [&] { words->forward(tokens); }) ==
        Findings{{"0", "embedding has the dtype of its weight and input, Float"}});

  torch::nn::Sequential pictures(torch::nn::Conv2d(3, 4, 3), torch::nn::BatchNorm2d(4));
  const auto images = at::randn({2, 3, 8, 8});
  const auto of_norm = vernier::check_amp_compatibility(*pictures, [&] { pictures->forward(images); });
  REQUIRE(of_norm.size() == 1);
  CHECK(of_norm[0].layer == "1");
  CHECK(of_norm[0].why == "its weights stay float32 at O2 and O3, as their kernels take them");

  const auto target = at::randn({3, 2});
  const auto of_loss = vernier::check_amp_compatibility(*plain, [&] {
    at::mse_loss(plain->forward(x), target);
    at::mse_loss(plain->forward(x), target);
  });
  CHECK(of_loss == Findings{{"", "autocast computes mse_loss in float32"}});

  torch::nn::Linear wide(4, 2);
  wide->to(torch::kFloat64);
  const auto of_double = vernier::check_amp_compatibility(*wide, [&] { wide->forward(x.to(torch::kFloat64)); });
  REQUIRE(of_double.size() == 2);
  CHECK(of_double[1] == vernier::AmpFinding{"", "its weights are float64, which autocast, O2 and O3 leave alone"});

  CHECK_THROWS_WITH_AS(vernier::check_amp_compatibility(
                           *plain, [] {}, torch::kFloat32),
                       "mixed precision computes in BFloat16 or Half, not in Float", vernier::Error);
  CHECK_THROWS_AS(vernier::check_amp_compatibility(*plain, [&] { plain->forward(tokens); }), c10::Error);
}

}  // namespace amp_compatibility_test
