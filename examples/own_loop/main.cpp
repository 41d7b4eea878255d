// A loop of your own with Vernier's toolkit, in train.h. Here it is run, stopped and resumed, and its averaged weights
// are saved for other programs. Nothing here knows of plugins, TOML or the runner.
#include "train.h"

#include <filesystem>
#include <iostream>

namespace nn = torch::nn;

namespace {

nn::Sequential make_model(std::uint64_t seed) {
  torch::manual_seed(seed);
  return nn::Sequential(nn::Linear(16, 64), nn::ReLU(), nn::Dropout(0.1), nn::Linear(64, 4));
}

bool same_weights(const nn::Sequential& a, const nn::Sequential& b) {
  const auto others = vernier::state_dict(*b);
  for (const auto& [name, weight] : vernier::state_dict(*a).tensors) {
    if (!torch::equal(weight, others.tensor(name))) return false;
  }
  return true;
}

}  // namespace

int main() {
  namespace fs = std::filesystem;
  const fs::path folder = "own_loop_checkpoints";
  fs::remove_all(folder);
  fs::create_directories(folder / "whole");
  fs::create_directories(folder / "resumed");
  torch::manual_seed(1);
  const auto inputs = torch::randn({1024, 16});
  const auto labels = inputs.matmul(torch::randn({16, 4})).argmax(1);

  auto model = make_model(2);
  train(model, inputs, labels, torch::kCPU, 200, folder / "whole");
  model->eval();
  const auto right = model->forward(inputs).argmax(1).eq(labels).to(torch::kFloat32).mean();
  std::cout << "200 steps: " << 100 * right.item<float>() << "% right\n";

  auto stopped = make_model(2);
  train(stopped, inputs, labels, torch::kCPU, 120, folder / "resumed");
  auto resumed = make_model(3);  // other weights and random numbers, as in a new process
  train(resumed, inputs, labels, torch::kCPU, 200, folder / "resumed");
  const bool same = same_weights(model, resumed);
  std::cout << "stopped at step 120 and resumed from step 100: " << (same ? "the same weights" : "OTHER WEIGHTS")
            << '\n';

  // Any program that knows safetensors reads this file.
  const auto saved = vernier::read_checkpoint(vernier::checkpoints_in(folder / "whole").front());
  vernier::Ema average;
  average.load_state_dict(saved.state.part("average"));
  average.copy_to(model->parameters());
  const std::string path = "own_loop.safetensors";
  vernier::save_safetensors(path, vernier::state_dict(*model).tensors, vernier::Metadata{{"steps", "200"}});
  vernier::load_state_dict(*resumed, vernier::load_safetensors(path));
  resumed->eval();
  const bool equal = torch::equal(resumed->forward(inputs), model->forward(inputs));
  std::cout << "averaged weights saved to " << path
            << ", loaded again: " << (equal ? "the same outputs" : "OTHER OUTPUTS") << '\n';
  return same && equal ? 0 : 1;
}
