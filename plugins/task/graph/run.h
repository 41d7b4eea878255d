// Runs a program.
#pragma once

#include "program.h"

namespace graph {

struct Mode {
  bool is_training = true;
  c10::Device device = c10::kCPU;
};

// Returns the outputs of a graph for its inputs, in order. Each operator goes through LibTorch's dispatcher, so
// autograd, autocast and whoever intercepts operators see what they see of a model in C++. Throws what operators throw,
// with the node's name before it.
std::vector<IValue> run(const Graph& graph, std::vector<IValue> slots, const Mode& mode);

}  // namespace graph
