// The JSON of a graph's nodes in a file of torch.export. Its form is torch/_export/serde/schema.py of PyTorch 2.11.
#pragma once

#include <map>
#include <nlohmann/json.hpp>

#include "graph.h"

namespace vernier::graph {

class Pt2Nodes {
 public:
  // names: of the values that are inputs of the graph.
  Pt2Nodes(const Graph& graph, std::map<std::size_t, std::string> names) : graph_(graph), names_(std::move(names)) {}

  void write();
  nlohmann::json nodes = nlohmann::json::array();
  nlohmann::json tensor_values = nlohmann::json::object(), sym_int_values = nlohmann::json::object();
  const std::string& name_of(std::size_t value) const { return names_.at(value); }

 private:
  nlohmann::json inputs_of(const Node& node);
  nlohmann::json argument(const Argument& argument, const c10::Argument& schema);
  nlohmann::json constant(const c10::IValue& value, const c10::TypePtr& type) const;
  nlohmann::json list(const Argument& list, const c10::TypePtr& element);
  nlohmann::json tensor(std::size_t value) const;
  nlohmann::json outputs_of(const Node& node);
  // The name of a number that depends on the batch, for which a node is added.
  std::string symbol(std::int64_t per_sample);

  const Graph& graph_;
  std::map<std::size_t, std::string> names_;
  std::map<std::int64_t, std::string> symbols_;  // by numbers per sample
  std::map<std::string, int> count_;
  bool reshapes_ = false;  // the node of now is a view, to whose sizes -1 may belong
};

// The description of a tensor in a file. with_strides: its own strides, else those of a contiguous tensor.
nlohmann::json tensor_meta(const torch::Tensor& tensor, const Sizes& sizes, bool with_strides, bool requires_grad);
Sizes fixed_sizes(const torch::Tensor& tensor);

}  // namespace vernier::graph
