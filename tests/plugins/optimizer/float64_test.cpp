// Optimizers that compute with the loss, of networks in float64.
#include <doctest/doctest.h>
#include <torch/csrc/autograd/autograd.h>
#include <torch/nn/functional/loss.h>
#include <torch/script.h>
#include <vernier/safetensors.h>

#include "small_run.h"
#include "temporary_folder.h"

namespace float64_test {

// A loss that is rounded to float32 ends its line searches at gradients of 4e-4.
TEST_CASE("lbfgs gets losses of float64 with all their digits") {
  const TemporaryFolder folder;
  torch::manual_seed(1);
  const auto x = torch::randn({60, 8}, torch::kFloat64), label = torch::arange(60) * 7 % 11 % 3;
  vernier::save_safetensors(folder / "points.safetensors", {{"x", x}, {"label", label}});
  torch::jit::Module model("__torch__.Model");
  const auto zeros = [](std::vector<std::int64_t> sizes) {
    return torch::zeros(sizes, torch::kFloat64).set_requires_grad(true);
  };
  model.register_parameter("weight", zeros({8, 3}), false);
  model.register_parameter("bias", zeros({3}), false);
  model.define("def forward(self, x):\n  return torch.matmul(x, self.weight) + self.bias\n");
  model.save(folder / "logistic.pt");
  SmallRun run(from_toml({"[run]\nsteps = 8\n[task]\nuse = 'script'\nbatch_size = 60\nvalidation_share = 0\nmodel = '" +
                          (folder / "logistic.pt") + "'\ninputs = ['" + (folder / "points.safetensors") +
                          ":x']\ntarget = '" + (folder / "points.safetensors") +
                          ":label'\n[optimizer]\nuse = 'lbfgs'\nline_search = 'strong_wolfe'\n" +
                          "[checkpoint]\nuse = 'none'\n"}));
  auto dtype = torch::kFloat32;
  run.on(vernier::Event::StepEnd, [&](vernier::Run& now) { dtype = now.loss.scalar_type(); });
  run.train();
  CHECK((dtype == torch::kFloat64));
  const auto weights = run.run.model->parameters();
  const auto loss = torch::nn::functional::cross_entropy(x.matmul(weights[0]) + weights[1], label);
  for (const auto& gradient : torch::autograd::grad({loss}, weights)) {
    CHECK(gradient.abs().max().item<double>() < 2e-5);
  }
}

}  // namespace float64_test
