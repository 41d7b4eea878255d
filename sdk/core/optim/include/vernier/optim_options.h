// The options of the optimizers in optim.h that treat each element by itself. Those that treat each tensor as a whole
// are in optim_tensor_options.h. Defaults are those of Python's torch.optim, and of the authors' code for Lion.
#pragma once

#include <vernier/abi.h>
#include <vernier/tensor.h>

#include <cstdint>
#include <vector>

namespace vernier {

// The dtype in which Adam keeps its two averages between steps. bfloat16 and eight_bit need float32 parameters and no
// amsgrad; the update computes in float32. docs/guides/optimizers.md lists what each costs.
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
  std::uint64_t seed = 0;  // seed of the random rounding in AdamState::bfloat16
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

// Zeiler, ADADELTA, arXiv:1212.5701. A step has the size of earlier ones, times lr.
struct VERNIER_API AdadeltaOptions {
  double lr = 1.0;
  double rho = 0.9, eps = 1e-6;  // rho: decay of the means of squares, of gradients and of steps
  double weight_decay = 0.0;     // L2 penalty: added to the gradient
};

// Adam with Nesterov's momentum, which rises over the steps. Dozat, ICLR 2016 workshop.
struct VERNIER_API NAdamOptions {
  double lr = 2e-3;
  double beta1 = 0.9, beta2 = 0.999, eps = 1e-8;
  double weight_decay = 0.0;     // L2 penalty, or decoupled
  double momentum_decay = 4e-3;  // the momentum of step t is beta1 * (1 - 0.96^(t * momentum_decay) / 2)
  bool decoupled_weight_decay = false;
};

// Adam that steps by its momentum alone until the mean of squares is certain. Liu et al., ICLR 2020, arXiv:1908.03265.
struct VERNIER_API RAdamOptions {
  double lr = 1e-3;
  double beta1 = 0.9, beta2 = 0.999, eps = 1e-8;
  double weight_decay = 0.0;  // L2 penalty, or decoupled
  bool decoupled_weight_decay = false;
};

// Adam with the largest recent gradient instead of the mean of squares. Kingma and Ba, ICLR 2015, section 7.1.
struct VERNIER_API AdamaxOptions {
  double lr = 2e-3;
  double beta1 = 0.9, beta2 = 0.999, eps = 1e-8;
  double weight_decay = 0.0;  // L2 penalty: added to the gradient
};

// Steps by the sign of the gradient, with a size for each element. Riedmiller and Braun, ICNN 1993, in the form of
// torch.optim.Rprop: an element whose gradient changed its sign rests for a step. For whole data sets as one batch.
struct VERNIER_API RpropOptions {
  double lr = 1e-2;                        // size of the first step, above 0. set_lr() scales all later ones
  double eta_minus = 0.5, eta_plus = 1.2;  // factors of the size where the sign changed, and where it stayed
  double step_min = 1e-6, step_max = 50.0;
};

// Plain steps whose size decays, and the average of the weights. Polyak and Juditsky, SIAM J. Control Optim. 30, 1992.
// The average is the state "ax".
struct VERNIER_API ASGDOptions {
  double lr = 1e-2;
  double lambd = 1e-4, alpha = 0.75;  // step t, from 0, has the size lr / (1 + lambd * lr * t)^alpha
  double t0 = 1e6;                    // updates before the average begins; until then it is the weights
  double weight_decay = 0.0;          // L2 penalty: added to the gradient, besides the decay by lambd
};

// Parameters with their own options, for example biases without weight decay. May be empty.
template <class Options>
struct VERNIER_API ParameterGroup {
  std::vector<torch::Tensor> parameters;
  Options options;
};

}  // namespace vernier
