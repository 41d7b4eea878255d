// A graph as an ONNX file.
#pragma once

#include <vernier/graph/graph_export.h>

#include "graph.h"

namespace vernier::graph {

// Returns the bytes of a ModelProto. inputs: their names; model: what the graph was captured from. Throws Error that
// names every operator without a rule.
std::string onnx_bytes(const Graph& graph, const std::vector<std::string>& inputs, const ExportedModel& model);

// Returns true for a call that a rule writes as it is. Other operators are captured as those that they are made of.
bool has_rule(const c10::OperatorHandle& op, const torch::jit::Stack& arguments);

}  // namespace vernier::graph
