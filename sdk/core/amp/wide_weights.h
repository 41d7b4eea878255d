// The modules whose weights stay float32 at every level.
#pragma once

#include <torch/nn/module.h>

namespace vernier {

// True for LibTorch's BatchNorm and InstanceNorm.
bool has_float32_weights(const torch::nn::Module& module);

}  // namespace vernier
