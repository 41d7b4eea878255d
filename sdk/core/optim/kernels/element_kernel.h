// One update of RMSprop, Adagrad or Lion on the host in float32, on one thread. Each element is computed by itself and
// each operation rounds once, so the bits depend neither on the vector instructions nor on how a tensor is divided.
#pragma once

#include <cstdint>

namespace vernier {

// A run of elements of one tensor, with what applies to all of them. `state` has the slots in the order of the rule.
struct ElementRun {
  std::int64_t count;
  float* parameter;
  const float* gradient;
  float* state[3];
  float grad_scale = 1;  // the gradient is divided by it
  float l2 = 0;          // l2 * weight is added to the gradient
};

struct RMSpropNumbers {
  float alpha, square_share, eps, momentum, lr;  // square_share: 1 - alpha
  bool centered;
};

struct AdagradNumbers {
  float lr, eps;  // lr: of this step
};

struct LionNumbers {
  float beta1, share1, beta2, share2, decay, lr;  // share: 1 - beta; decay: the weight is multiplied by it
};

struct ElementKernels {
  void (*rmsprop)(const RMSpropNumbers& numbers, const ElementRun& run);  // square_avg[, grad_avg][, momentum_buffer]
  void (*adagrad)(const AdagradNumbers& numbers, const ElementRun& run);  // sum
  void (*lion)(const LionNumbers& numbers, const ElementRun& run);        // exp_avg
};

}  // namespace vernier
