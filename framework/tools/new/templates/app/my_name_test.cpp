// Tests the loop on a few points.
#include "train.h"

#include <filesystem>
// doctest comes last, because LibTorch has macros of the same names.
#define DOCTEST_CONFIG_IMPLEMENT_WITH_MAIN
#include <doctest/doctest.h>

namespace {

torch::nn::Sequential make_model() {
  torch::manual_seed(1);
  return torch::nn::Sequential(torch::nn::Linear(2, 8), torch::nn::ReLU(), torch::nn::Linear(8, 2));
}

std::string empty_folder(const std::string& name) {
  std::filesystem::remove_all(name);
  std::filesystem::create_directories(name);
  return name;
}

}  // namespace

TEST_CASE("a loop that is stopped and resumed ends with the same weights, to the last bit") {
  const auto inputs = torch::randn({256, 2});
  const auto labels = (inputs.sum(1) > 0).to(torch::kInt64);
  auto whole = make_model(), halves = make_model();
  train(whole, inputs, labels, 100, empty_folder("my_name_test_whole"));
  const auto folder = empty_folder("my_name_test_halves");
  train(halves, inputs, labels, 70, folder);  // the newest checkpoint is that of step 50
  train(halves, inputs, labels, 100, folder);
  for (std::size_t i = 0; i < whole->parameters().size(); ++i) {
    CHECK(torch::equal(whole->parameters()[i], halves->parameters()[i]));
  }
  CHECK(whole->forward(inputs).argmax(1).eq(labels).to(torch::kFloat32).mean().item<float>() > 0.9);
}
