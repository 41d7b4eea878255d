// Captures the graph of a model.
#pragma once

#include <torch/nn/module.h>

#include <functional>

#include "graph.h"

namespace vernier::graph {

using Inputs = std::vector<torch::Tensor>;
using Forward = std::function<torch::Tensor(const Inputs& inputs)>;
// Returns true for a call that becomes one node, though its operator is made of others.
using Keeps = std::function<bool(const c10::OperatorHandle& op, const torch::jit::Stack& arguments)>;

// Runs forward() in evaluation mode for batches of 2 and 3 samples, and records the operators that it calls through
// LibTorch's dispatcher, above autograd. Numbers that differ are multiples of the batch's size. The graph is then run
// for another batch, and must give what forward() gives. examples: one tensor for each input, dimension 0 the sample.
// If `keeps` returns false for an operator made of others, the graph has their nodes. An empty `keeps` keeps all.
// Throws Error where forward() decides by the numbers of its input, changes a buffer, or calls other operators for
// another batch.
Graph capture(const torch::nn::Module& module, const Forward& forward, const Inputs& examples, const Keeps& keeps = {});

// Runs a graph for a batch.
torch::Tensor run(const Graph& graph, const Inputs& inputs);

}  // namespace vernier::graph
