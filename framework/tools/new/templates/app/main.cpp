// my_name: trains a small network on random points, and saves its weights for other programs.
#include <filesystem>
#include <iostream>

#include "train.h"

int main() {
  const std::string folder = "runs/my_name";
  std::filesystem::create_directories(folder);
  torch::manual_seed(1);
  const auto inputs = torch::randn({1024, 16});
  const auto labels = inputs.matmul(torch::randn({16, 4})).argmax(1);
  torch::nn::Sequential model(torch::nn::Linear(16, 64), torch::nn::ReLU(), torch::nn::Linear(64, 4));

  train(model, inputs, labels, 200, folder);
  const auto right = model->forward(inputs).argmax(1).eq(labels).to(torch::kFloat32).mean();
  std::cout << "200 steps: " << 100 * right.item<float>() << "% right\n";
  vernier::save_safetensors("my_name.safetensors", vernier::state_dict(*model).tensors);
  std::cout << "weights saved to my_name.safetensors\n";
}
