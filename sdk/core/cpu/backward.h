// The backward pass of a loss on a CPU, without the work that LibTorch's engine repeats for each node of the graph.
#pragma once

#include <vernier/abi.h>
#include <vernier/tensor.h>

namespace vernier {

// Does what loss.backward() does, with the same bits: it calls the same nodes in the same order. LibTorch's engine
// saves and restores the state of the thread around each node, which takes longer than a small product; here that is
// done once for the whole graph. It is loss.backward() itself where fused_kernels() is false, where a node has a hook
// or is on another device, and while a profiler or the anomaly mode looks at the nodes.
VERNIER_API void backward(const torch::Tensor& loss);

}  // namespace vernier
