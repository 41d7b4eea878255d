// A graph as a file of torch.export.
#pragma once

#include "graph.h"

namespace vernier::graph {

// Returns the bytes of a file for torch.export.load. inputs: the names of forward()'s arguments.
std::string pt2_bytes(const Graph& graph, const std::vector<std::string>& inputs);

}  // namespace vernier::graph
