// The rule of a loss scale by LibTorch's operators, as on a GPU: without a host sync.
#pragma once

#include <vernier/loss_scale.h>

namespace vernier {

// The state of a LossScale, 0-dim and on one device.
struct ScaleTensors {
  torch::Tensor scale;    // float32
  torch::Tensor tracker;  // int32, good steps in a row
  torch::Tensor left;     // int32, overflows until the scale is lowered
};

// LossScale::update() for a GPU. Works on any device, with the same bits as the plain arithmetic for a CPU.
VERNIER_API void update_by_operators(const LossScaleOptions& options, const ScaleTensors& state,
                                     const torch::Tensor& found_inf, const torch::Tensor& passed_over = {});

}  // namespace vernier
