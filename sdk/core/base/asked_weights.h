// The weights that plugins want an evaluation to have.
#pragma once

#include <torch/types.h>
#include <vernier/abi.h>

#include <utility>
#include <vector>

namespace vernier {

// While one lives, with_weights() on this thread leaves the model as it is, and notes the weights here.
class VERNIER_API AskedWeights {
 public:
  AskedWeights();
  ~AskedWeights();
  AskedWeights(const AskedWeights&) = delete;
  AskedWeights& operator=(const AskedWeights&) = delete;
  static AskedWeights* current();  // null if there is none

  // Tensors of the model, each with the weights that a call had for it. The calls of several optimizers come in turn.
  using Pairs = std::vector<std::pair<torch::Tensor, torch::Tensor>>;
  Pairs weights;

 private:
  AskedWeights* before_;
};

}  // namespace vernier
