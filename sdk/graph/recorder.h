// Records the operators that a thread calls, as one trace of a model. Used by capture.cpp.
#pragma once

#include <vernier/layers.h>

#include <memory>
#include <unordered_map>

#include "capture.h"

namespace vernier::graph {

// A trace is a graph whose sizes are those of its batch.
class Recorder {
 public:
  // Parameters, buffers and inputs become the first values.
  Recorder(const torch::nn::Module& module, const Inputs& inputs);
  Graph record(const Forward& forward, const Inputs& inputs);

  // Called for each operator, with its arguments on the stack.
  void call(const c10::OperatorHandle& op, torch::jit::Stack& stack);

 private:
  std::size_t add(Value::Kind kind, const std::string& name, const torch::Tensor& tensor);
  // known_as: the tensor that operators are given for it.
  std::size_t add(Value::Kind kind, const std::string& name, const torch::Tensor& tensor,
                  const torch::Tensor& known_as);
  std::size_t value_of(const torch::Tensor& tensor);
  Argument argument_of(const c10::IValue& value);
  Argument list_of(const c10::IValue& value);
  // Throws Error for changes that a graph cannot hold. Returns the values that are changed.
  std::vector<torch::Tensor> changed_by(const c10::OperatorHandle& op, const torch::jit::Stack& arguments);
  void keep_constants(const torch::Tensor& changed);
  void keep_results(Node& node, const std::vector<c10::IValue>& results);
  bool needs_input(const Argument& argument) const;

  Graph graph_;
  Layers layers_;
  std::string layer_;
  std::unordered_map<const c10::TensorImpl*, std::size_t> known_;
  std::unordered_multimap<const c10::StorageImpl*, std::size_t> by_storage_;
  std::vector<torch::Tensor> alive_;  // so that known_ has no address of another tensor
  std::vector<bool> is_stale_;        // a view of a tensor that was changed
  std::vector<bool> needs_input_;     // the value depends on an input
};

}  // namespace vernier::graph
