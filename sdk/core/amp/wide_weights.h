// The modules whose weights stay float32 at every level.
#pragma once

#include <torch/nn/module.h>

namespace vernier {

// Returns true for LibTorch's BatchNorm and InstanceNorm, and for modules with running statistics as theirs: those of a
// graph or a script have no class.
bool has_float32_weights(const torch::nn::Module& module);

}  // namespace vernier
