// A program of torch.export as a module: its parameters and buffers have the names they had in Python.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "program.h"
#include "task/exported/network.h"

namespace graph {

class GraphNetwork final : public exported::Network {
 public:
  // output: the name of what forward() returns, where it returns several; "": the only one. Throws Error where the file
  // cannot be trained.
  GraphNetwork(const torch::Tensor& bytes, const std::string& path, const std::string& output);

  torch::Tensor forward(const std::vector<torch::Tensor>& inputs) override;
  // Writes the file again with the weights of now.
  void write(const std::string& file) const;
  // True if all dropout and batch normalisation was exported in evaluation mode.
  bool trains_as_evaluated() const { return !program_.has_training_nodes && program_.has_idle_nodes; }

 private:
  void register_tensor(const Input& input, const torch::Tensor& tensor);
  void choose_output(const std::string& name);
  void check_inputs(const std::vector<torch::Tensor>& inputs) const;
  void refuse_static_batch() const;

  mutable Archive archive_;  // its reader is not const
  Program program_;
  std::size_t output_ = 0;
  std::size_t user_inputs_ = 0;
  std::map<std::string, torch::Tensor> tensors_;  // by name; tied ones share theirs
  std::vector<torch::Tensor> given_;              // for each of program_.inputs; undefined: the user's
};

}  // namespace graph
