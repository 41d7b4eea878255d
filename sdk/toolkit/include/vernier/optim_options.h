// The options of the optimizers in optim.h that treat each element by itself. Those that treat each tensor as a whole
// are in optim_tensor_options.h. Defaults are those of Python's torch.optim, and of the authors' code for Lion.
#pragma once

#include <vernier/abi.h>
#include <vernier/tensor.h>

#include <cstdint>
#include <vector>

namespace vernier {

// The dtype in which Adam keeps its two averages between steps. bfloat16 and eight_bit need float32 parameters and no
// amsgrad; the update computes in float32. docs/optimizers.md lists what each costs.
enum class AdamState {
  full,       // the parameter's dtype, as in PyTorch: 8 bytes for each float32 element
  bfloat16,   // 4 bytes; rounded up or down at random, so that the mean is exact (Gupta et al., ICML 2015)
  eight_bit,  // 2 bytes, and 8 for each 256 elements: block-wise dynamic quantization (Dettmers et al., ICLR 2022).
              // Parameters of fewer than 4096 elements, or in another layout (channels_last), keep float32
};

struct VERNIER_API AdamOptions {
  double lr = 1e-3;
  double beta1 = 0.9, beta2 = 0.999, eps = 1e-8;
  double weight_decay = 0.0;  // L2 penalty: added to the gradient
  bool amsgrad = false, maximize = false;
  AdamState state = AdamState::full;
  std::uint64_t seed = 0;  // of the random rounding of AdamState::bfloat16
};

struct VERNIER_API AdamWOptions {
  double lr = 1e-3;
  double beta1 = 0.9, beta2 = 0.999, eps = 1e-8;
  double weight_decay = 0.01;  // decoupled: subtracted from the weight
  bool amsgrad = false, maximize = false;
  AdamState state = AdamState::full;
  std::uint64_t seed = 0;
};

struct VERNIER_API SGDOptions {
  double lr = 1e-3;
  double momentum = 0.0;
  double dampening = 0.0;  // other than 0 costs a host sync for each step on a GPU
  double weight_decay = 0.0;
  bool nesterov = false, maximize = false;
};

struct VERNIER_API RMSpropOptions {
  double lr = 1e-2;
  double alpha = 0.99, eps = 1e-8;  // alpha: decay of the mean of squares
  double weight_decay = 0.0;        // L2 penalty: added to the gradient
  double momentum = 0.0;
  bool centered = false;  // divides by the deviation instead of the root mean square. A variance below 0, which
                          // rounding can give, is taken as 0; PyTorch's update is NaN then
};

struct VERNIER_API AdagradOptions {
  double lr = 1e-2;
  double lr_decay = 0.0;  // step t, from 0, has the learning rate lr / (1 + t * lr_decay)
  double weight_decay = 0.0;
  double initial_accumulator_value = 0.0, eps = 1e-10;  // the former: the sum of squares before the first step
};

// Chen et al., Symbolic Discovery of Optimization Algorithms, NeurIPS 2023 (github.com/google/automl, lion_pytorch.py).
struct VERNIER_API LionOptions {
  double lr = 1e-4;
  double beta1 = 0.9, beta2 = 0.99;  // share of the mean in the step; decay of the mean
  double weight_decay = 0.0;         // decoupled
};

// Parameters with their own options, for example biases without weight decay. May be empty.
template <class Options>
struct VERNIER_API ParameterGroup {
  std::vector<torch::Tensor> parameters;
  Options options;
};

}  // namespace vernier
