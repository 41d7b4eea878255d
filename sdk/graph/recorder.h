// Records the operators that a thread calls, as one trace of a model. Used by capture.cpp.
#pragma once

#include <vernier/layers.h>

#include <optional>
#include <unordered_map>
#include <utility>

#include "capture.h"

namespace vernier::graph {

// A trace is a graph whose sizes are those of its batch.
class Recorder {
 public:
  // Parameters, buffers and inputs become the first values. keeps: see capture().
  Recorder(const torch::nn::Module& module, const Inputs& inputs, const Keeps& keeps);
  Graph record(const Forward& forward, const Inputs& inputs);

  // Called for each operator, with its arguments on the stack.
  void call(const c10::OperatorHandle& op, torch::jit::Stack& stack);
  // Returns true if the operators that it calls are recorded in its place.
  bool takes_apart(const c10::OperatorHandle& op, const torch::jit::Stack& stack) const;

 private:
  // A tensor that shares the memory of another one, and the node that took it.
  struct View {
    torch::Tensor base;
    Node node;
    std::size_t argument;  // the place of the base among the node's arguments
    std::size_t place;     // the place of the view among the node's results
  };
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
  std::size_t add_node(Node node, const torch::Tensor& result);
  void keep_views(const Node& node);
  std::vector<std::pair<torch::Tensor, std::size_t>> bases_of(torch::Tensor view);
  std::size_t taken_again(const torch::Tensor& view);
  std::optional<std::size_t> base_with(const View& view, std::size_t base, std::size_t part);
  void mark_stale(const torch::Tensor& changed, bool needs_input);
  void write_back(const torch::Tensor& changed, const std::vector<std::pair<torch::Tensor, std::size_t>>& bases);

  const Keeps& keeps_;
  Graph graph_;
  Layers layers_;
  std::string layer_;
  std::unordered_map<const c10::TensorImpl*, std::size_t> known_;
  std::unordered_multimap<const c10::StorageImpl*, std::size_t> by_storage_;
  std::unordered_map<const c10::TensorImpl*, View> views_;
  std::vector<torch::Tensor> given_;  // the tensor that operators receive for each value
  std::vector<bool> is_stale_;        // memory of the value was changed through another tensor
  std::vector<bool> needs_input_;     // the value depends on an input
};

}  // namespace vernier::graph
