// A trainable tensor of a run: the model's tensor and the optimizer's.
#pragma once

#include <vernier/tensor.h>

#include <string>

namespace vernier {

// Gradients are on `model` after backward, and on `master` from GradientsReady on. Run::gradients() returns the latter.
struct Parameter {
  std::string name;      // dotted, as in the module: "h.0.attn.c_attn.weight"
  torch::Tensor model;   // read by forward
  torch::Tensor master;  // changed by the optimizer: `model` or a float32 copy; may have no memory between steps
  bool frozen = false;   // set in the optimizer's prepare: it never updates this parameter
  bool owned = true;     // false: another rank updates it and keeps its state; a separate `master` has no memory here

  // Returns the most exact weights: `master`, or `model` while the master has no memory.
  const torch::Tensor& best() const { return master.defined() && master.storage().nbytes() > 0 ? master : model; }
};

}  // namespace vernier
