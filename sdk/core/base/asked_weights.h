// The weights that plugins want an evaluation to have.
#pragma once

#include <torch/types.h>
#include <vernier/abi.h>

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

  std::vector<torch::Tensor> weights;  // the last call had them

 private:
  AskedWeights* before_;
};

}  // namespace vernier
