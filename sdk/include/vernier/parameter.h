// A trainable tensor of a run, as the model has it and as the optimizer has it.
#pragma once

#include <torch/types.h>

#include <string>

namespace vernier {

// Gradients are on `model` after backward, on `owned` from GradientsReady on; see Run::gradients().
struct Parameter {
  std::string name;     // dotted, as in the module: "h.0.attn.c_attn.weight"
  torch::Tensor model;  // what forward reads
  torch::Tensor owned;  // what the optimizer changes: the same tensor, or a float32 one; may be empty between steps

  // The weights in the best dtype that there is at the moment: `owned`, or `model` where that has no memory now.
  const torch::Tensor& latest() const { return owned.defined() && owned.storage().nbytes() > 0 ? owned : model; }
};

}  // namespace vernier
