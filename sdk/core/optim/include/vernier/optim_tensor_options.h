// The options of the optimizers in optim.h whose rule looks at each tensor as a whole. On a CPU, each tensor is updated
// by one thread, so the bits do not depend on the number of threads. On a GPU there is no host sync.
#pragma once

#include <vernier/abi.h>

#include <cstdint>

namespace vernier {

// Adam whose step of each tensor is scaled by the ratio of the weights' norm to the step's. You et al., Large Batch
// Optimization for Deep Learning: Training BERT in 76 minutes, ICLR 2020, algorithm 2. Where a norm is 0, the ratio
// is 1.
struct VERNIER_API LambOptions {
  double lr = 1e-3;
  double beta1 = 0.9, beta2 = 0.999, eps = 1e-6;
  double weight_decay = 0.01;  // decoupled, and part of the step whose norm is taken
  bool trust_ratio = true;     // false: the ratio is 1. The authors' code does so for biases and norms
};

// Shazeer and Stern, Adafactor, ICML 2018, in the form of torch.optim.Adafactor. Tensors of two or more dimensions keep
// the means of squares of the rows and columns of the last two; others keep the mean of each element.
struct VERNIER_API AdafactorOptions {
  double lr = 1e-2;  // the largest relative step size; step t has min(lr, 1 / sqrt(t)). Also times weight_decay
  double beta2_decay = -0.8;        // decay of the mean of squares in step t: 1 - t^beta2_decay
  double eps1 = 0.0, eps2 = 1e-3;   // least root mean square of gradients (0: the dtype's epsilon) and of weights
  double clipping_threshold = 1.0;  // largest root mean square of an update, `d` in PyTorch
  double weight_decay = 0.0;        // decoupled
};

// Muon's factor of the learning rate, for a rows x columns matrix.
enum class MuonRate {
  original,         // sqrt(max(1, rows / columns)), Jordan et al.
  match_rms_adamw,  // 0.2 sqrt(max(rows, columns)): a learning rate and weight decay of AdamW fit (arXiv:2502.16982)
};

// Jordan et al., Muon (kellerjordan.github.io/posts/muon, 2024), in the form of torch.optim.Muon: momentum, turned into
// a nearly orthogonal matrix by Newton-Schulz iterations in bfloat16. It is for the matrices of hidden layers. So AdamW
// updates parameters that have not two dimensions, and groups with `adamw`: put embeddings and the last layer there.
struct VERNIER_API MuonOptions {
  double lr = 1e-3;           // above 0
  double weight_decay = 0.1;  // decoupled, also AdamW's
  double momentum = 0.95;
  bool nesterov = true;
  double eps = 1e-7;          // least norm that a matrix is divided by
  std::int64_t ns_steps = 5;  // iterations, below 100
  MuonRate rate = MuonRate::original;
  bool adamw = false;      // true: AdamW updates all parameters of this group
  double adamw_lr = 3e-4;  // AdamW's learning rate. set_lr() changes it in proportion
  double adamw_beta1 = 0.9, adamw_beta2 = 0.95, adamw_eps = 1e-10;
};

}  // namespace vernier
