// A TorchScript module as a torch::nn::Module.
#pragma once

#include <torch/csrc/jit/api/module.h>
#include <torch/nn/module.h>

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

namespace script {

// A part of a script: its tensors under its names.
class Part : public torch::nn::Module {
 public:
  explicit Part(const torch::jit::Module& script);
};

class Script final : public Part {
 public:
  explicit Script(const torch::jit::Module& script) : Part(script), script_(script) {}
  void train(bool on) override;
  // Throws Error with the dtypes and shapes of the inputs where TorchScript throws.
  torch::Tensor forward(const std::vector<torch::Tensor>& inputs);
  // Returns forward() of the first two samples in evaluation mode. Throws as forward() does.
  torch::Tensor try_two(const std::vector<torch::Tensor>& tensors);
  void write(const std::string& file) const;

 private:
  torch::jit::Module script_;
};

// Returns the bytes of a model's file as uint8.
torch::Tensor bytes_of(const std::string& path);
// Returns the model of such bytes. path: for messages.
std::shared_ptr<Script> script_of(const torch::Tensor& bytes, const std::string& path);

// Returns outputs that have as many numbers as the targets, in their shape.
torch::Tensor as_target(const torch::Tensor& output, const torch::Tensor& target);
// Refuses outputs that are not logits of so many classes.
void require_logits(const torch::Tensor& output, std::int64_t classes);

// Returns tensors as an error shows them: "float32 [16, 2], int64 [16]".
std::string shapes_of(const std::vector<torch::Tensor>& tensors);
// The names of dtypes, as NumPy has them: "float32".
std::string name_of(torch::ScalarType dtype);

}  // namespace script
