// A trainable tensor of a run: the model's tensor and the optimizer's.
#pragma once

#include <vernier/tensor.h>

#include <string>

namespace vernier {

// Gradients are on `model` after backward, and on `master` from GradientsReady on. Run::gradients() returns the latter.
struct Parameter {
  std::string name;      // dotted, as in the module: "h.0.attn.c_attn.weight"
  torch::Tensor model;   // read by forward
  torch::Tensor master;  // changed by the optimizer: `model` or a copy of it, see Run::set_master
  bool frozen = false;   // see Run::freeze: the optimizer never updates this parameter
  bool owned = true;     // false: another rank updates it and keeps its state; a separate `master` has no memory here

  // False: `master` has no memory now, and reading it crashes.
  bool has_memory() const { return master.defined() && (master.numel() == 0 || master.storage().nbytes() > 0); }
  // Returns the most exact weights: `master`, or `model` while the master has no memory.
  const torch::Tensor& best() const { return has_memory() ? master : model; }
};

// Run::gradient_norm() is made from these: 2-norms of the gradients before they are divided by Run::grad_scale.
struct GradientNorms {
  torch::Tensor all;              // float64 0-dim; set by a scaler that has read the gradients, or undefined
  torch::Tensor each;             // float64 1-D: a norm for each gradient that is not empty; set likewise
  torch::Tensor before_clipping;  // float32 0-dim: what gradient_norm() has returned in this step
};

}  // namespace vernier
