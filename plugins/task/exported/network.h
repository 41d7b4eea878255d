// A model that Python exported, as a torch::nn::Module: its parameters and buffers have their names of there.
#pragma once

#include <torch/nn/module.h>

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

namespace exported {

class Network : public torch::nn::Module {
 public:
  // Returns the model's output for the tensors of a batch. Throws Error with their dtypes and shapes where the model
  // fails.
  virtual torch::Tensor forward(const std::vector<torch::Tensor>& inputs) = 0;
  // Returns what forward() assumes of its inputs that these do not fulfil, such as "x.size()[0] <= 4"; "": nothing.
  virtual std::string unmet(const std::vector<torch::Tensor>&) const { return ""; }
  // Returns forward() of the first two samples, or of as few more as it takes, in evaluation mode. Throws as it does.
  torch::Tensor try_two(const std::vector<torch::Tensor>& tensors);
};

// Returns the bytes of a model's file as uint8.
torch::Tensor bytes_of(const std::string& path);
// Writes a model's file. Throws Error where the disk is full.
void write_bytes(const std::string& file, const std::string& bytes);
// Refuses a model without parameters to train.
void require_parameters(const Network& network, const std::string& path);
// Handles what a model throws in forward(): throws Error with the dtypes and shapes of the inputs, and logs the whole.
[[noreturn]] void rethrow_failure(const std::exception& error, const std::vector<torch::Tensor>& inputs);

// Returns outputs that have as many numbers as the targets, in their shape.
torch::Tensor as_target(const torch::Tensor& output, const torch::Tensor& target);
// Refuses outputs that are not logits of so many classes.
void require_logits(const torch::Tensor& output, std::int64_t classes);

// Returns tensors as an error shows them: "float32 [16, 2], int64 [16]".
std::string shapes_of(const std::vector<torch::Tensor>& tensors);
// The names of dtypes, as NumPy has them: "float32".
std::string name_of(torch::ScalarType dtype);

}  // namespace exported
