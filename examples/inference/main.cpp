// Answers with a model that `vernier export RUN --format torchscript --output model.pt` has written, or --format pt2 to
// model.pt2. This program needs LibTorch alone: neither Vernier's program nor its library.
#include <torch/nativert/ModelRunnerHandle.h>
#include <torch/script.h>

#include <cstdlib>
#include <iostream>

namespace {

// Returns what the model says about a batch.
torch::Tensor answer(const std::string& file, const torch::Tensor& batch) {
  if (file.ends_with(".pt2")) {
    torch::nativert::ModelRunnerHandle model(file, "model");
    return model.run({batch}, {}).toTensor();
  }
  auto model = torch::jit::load(file);
  model.eval();
  return model.forward({batch}).toTensor();
}

}  // namespace

// main MODEL NUMBER…: prints what the model says about one sample of these numbers.
int main(int argc, char** argv) try {
  if (argc < 3) throw std::invalid_argument("usage: inference MODEL NUMBER…");
  std::vector<float> numbers;
  for (int i = 2; i < argc; ++i) numbers.push_back(std::stof(argv[i]));

  const torch::InferenceMode inference;
  // task/tabular takes float64 and float32 as TorchScript, and float64 as .pt2. A batch of one.
  const auto output = answer(argv[1], torch::tensor(numbers, torch::kFloat64).unsqueeze(0));
  std::cout << "outputs";
  for (std::int64_t i = 0; i < output.numel(); ++i) std::cout << ' ' << output.flatten()[i].item<float>();
  std::cout << '\n';
  return 0;
} catch (const std::exception& error) {
  std::cerr << error.what() << '\n';
  return 1;
}
