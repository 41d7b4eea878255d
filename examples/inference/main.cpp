// Answers with a model that `vernier export RUN --format torchscript --output model.pt` has written. This program needs
// LibTorch alone: neither Vernier's program nor its library.
#include <torch/script.h>

#include <cstdlib>
#include <iostream>

// main MODEL NUMBER…: prints what the model says about one sample of these numbers.
int main(int argc, char** argv) try {
  if (argc < 3) throw std::invalid_argument("usage: inference MODEL NUMBER…");
  auto model = torch::jit::load(argv[1]);
  model.eval();
  std::vector<float> numbers;
  for (int i = 2; i < argc; ++i) numbers.push_back(std::stof(argv[i]));

  const torch::InferenceMode inference;
  const auto sample = torch::tensor(numbers).unsqueeze(0);  // a batch of one
  const auto output = model.forward({sample}).toTensor();
  std::cout << "outputs";
  for (std::int64_t i = 0; i < output.numel(); ++i) std::cout << ' ' << output.flatten()[i].item<float>();
  std::cout << '\n';
  return 0;
} catch (const std::exception& error) {
  std::cerr << error.what() << '\n';
  return 1;
}
