// The modules whose weights stay float32 at every level.
#pragma once

#include <torch/nn/module.h>

namespace vernier {

// Returns true for LibTorch's BatchNorm and InstanceNorm, and for a module of a graph or a script with running_mean.
bool has_float32_weights(const torch::nn::Module& module);

}  // namespace vernier
