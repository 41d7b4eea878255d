// A program of torch.export as a module: its parameters and buffers have the names they had in Python.
#pragma once

#include <vernier/run.h>

#include <map>
#include <optional>
#include <set>
#include <string>
#include <utility>
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
  // Returns the bytes of the file with the current weights, in the dtypes that it declares. Throws Error where what it
  // would be read as is not these weights.
  std::string bytes() const;
  // Returns tensors for forward() in the dtypes that the program declares.
  std::vector<torch::Tensor> as_declared(std::vector<torch::Tensor> inputs) const;
  // Throws Error where tensors that share memory no longer do so, or are not all updated by this process.
  void refuse_taken_apart(const vernier::Run& run) const;
  // The tensors of the module's state_dict() in Python. Tied ones have all their names.
  std::map<std::string, torch::Tensor> state_dict() const;
  std::string unmet(const std::vector<torch::Tensor>& inputs) const override;
  // The first node whose form in evaluation mode the file does not say; "": it says all.
  const std::string& guessed() const { return training_.program.guessed; }
  // The rank for which a file of a model in parts is. none: the file has the whole model.
  struct Parts {
    std::int64_t rank = 0, ranks = 1;
    std::set<std::string> sharded;  // names of tensors of which each rank has a part
  };
  const std::optional<Parts>& parts() const { return parts_; }
  // Returns the names of the tensors that may differ between the ranks: those parts, and the constants of the program.
  std::set<std::string> own_tensors() const;
  // True if all dropout and batch normalisation was exported in evaluation mode.
  bool trains_as_evaluated() const { return !training_.program.has_training_nodes && training_.program.has_idle_nodes; }

 private:
  // A program with its tensors.
  struct BoundProgram {
    Program program;
    std::size_t output = 0;                 // the place of the one that counts
    std::vector<torch::Tensor> given = {};  // for each of program.inputs; undefined: the user's
    std::size_t user_inputs = 0;
    std::vector<std::int64_t> fitting = {};  // the sizes of all inputs for which the guards held last
  };

  void read_parts();
  BoundProgram bind(Program program, const std::string& output);
  void register_tensor(const Input& input, const torch::Tensor& tensor);
  std::size_t place_of(const std::string& output, const std::vector<std::string>& names) const;
  static void check_inputs(const BoundProgram& bound, const std::vector<torch::Tensor>& inputs);
  void refuse_static_batch(const Program& program) const;

  mutable Archive archive_;                                  // its reader is not const
  std::map<std::string, torch::Tensor> tensors_;             // by name; tied ones share theirs
  std::vector<std::pair<std::string, std::string>> shared_;  // names of different tensors that share memory
  std::optional<Parts> parts_;
  BoundProgram training_;
  std::optional<BoundProgram> evaluation_;  // set if evaluation is another program
};

}  // namespace graph
