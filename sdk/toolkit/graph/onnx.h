// A graph as an ONNX file.
#pragma once

#include "graph.h"

namespace vernier::graph {

// Returns the bytes of a ModelProto. inputs: their names. Throws Error that names every operator without a rule.
std::string onnx_bytes(const Graph& graph, const std::vector<std::string>& inputs, const std::string& description);

}  // namespace vernier::graph
