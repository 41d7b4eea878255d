// Optimizers in one pass over weights, gradients and state, six times as fast as torch::optim's loops on a CPU. Same
// numbers as Python's torch.optim with fused=True: LibTorch's fused kernels, and for Adam on float32 on a CPU one of our own
// with the bits of LibTorch's on one thread (on x86-64; elsewhere a last bit may differ), whatever the number of threads.
//
//   vernier::AdamW optimizer(model->parameters(), {.lr = 3e-4});
//   loss.backward();
//   optimizer.step();
//   optimizer.zero_grad();
#pragma once

#include <torch/types.h>
#include <vernier/abi.h>
#include <vernier/state.h>

#include <cstdint>
#include <memory>
#include <vector>

namespace vernier {

// In what Adam keeps its two averages between steps. The two small kinds are for float32 parameters, without amsgrad, and
// computed with in float32. docs/optimizers.md says what each costs.
enum class AdamState {
  full,       // the parameter's dtype, as PyTorch does: 8 bytes a float32 element
  bfloat16,   // 4 bytes; rounded up or down by chance so that the mean is exact (Gupta et al., ICML 2015)
  eight_bit,  // 2 bytes and 8 for each 256 elements: block-wise dynamic quantisation (Dettmers et al., ICLR 2022).
              // Parameters of fewer than 4096 elements, or in another layout (channels_last), keep float32
};

struct VERNIER_API AdamOptions {
  double lr = 1e-3;
  double beta1 = 0.9, beta2 = 0.999, eps = 1e-8;
  double weight_decay = 0.0;  // L2: added to the gradient
  bool amsgrad = false, maximize = false;
  AdamState state = AdamState::full;
  std::uint64_t seed = 0;  // of bfloat16's rounding
};

struct VERNIER_API AdamWOptions {
  double lr = 1e-3;
  double beta1 = 0.9, beta2 = 0.999, eps = 1e-8;
  double weight_decay = 0.01;  // decoupled: taken off the weight
  bool amsgrad = false, maximize = false;
  AdamState state = AdamState::full;
  std::uint64_t seed = 0;
};

struct VERNIER_API SGDOptions {
  double lr = 1e-3;
  double momentum = 0.0;
  double dampening = 0.0;  // other than 0 costs a host sync a step on a GPU
  double weight_decay = 0.0;
  bool nesterov = false, maximize = false;
};

// Parameters with options of their own, e.g. biases without weight decay. May be empty.
template <class Options>
struct VERNIER_API ParameterGroup {
  std::vector<torch::Tensor> parameters;
  Options options;
};

// What the three optimizers share. Parameters are leaves: dense, float64, float32, bfloat16 or float16, on any devices.
// A constructor throws Error where one is not, is given twice, or an option is out of range. One thread at a time.
class VERNIER_API FusedOptimizer {
 public:
  virtual ~FusedOptimizer();
  FusedOptimizer(const FusedOptimizer&) = delete;
  FusedOptimizer& operator=(const FusedOptimizer&) = delete;

  // One update, after backward; parameters without a gradient are passed over. Gradients count divided by grad_scale, and
  // are afterwards divided in memory too or not, as the kernel has it: read them before. Where found_inf is not 0 nothing
  // changes, step counts included (both float32 0-dim or undefined). No host sync on a GPU. Throws Error, before any
  // change, where a gradient is sparse or not of its parameter's dtype, device and shape.
  void step(const torch::Tensor& found_inf = {}, const torch::Tensor& grad_scale = {});

  // Instead of step(), so that gradients need not all be there at once: in backward passes from now on each gradient is
  // used, as soon as it is complete, and freed (Lv et al., LOMO, arXiv:2306.09782). Same bits as step(). Called before each
  // such pass, with several pieces a batch before the last one's; false: passes only add up, as they do at first.
  // Nothing can be clipped, scaled or skipped, for no one sees all gradients. backward() throws Error where a gradient
  // comes a second time: one pass more, or a parameter in several parts that activation checkpointing computes again.
  void step_in_backward(bool on = true);

  void zero_grad(bool set_to_none = true);  // drops the gradients, or fills them with 0

  // The learning rate from the next step on, of all groups or of one, counted from 0 as the constructor got them.
  void set_lr(double lr);
  void set_lr(double lr, std::size_t group) { lr_.at(group) = lr; }
  double lr(std::size_t group = 0) const { return lr_.at(group); }

  const std::vector<torch::Tensor>& parameters() const { return parameters_; }
  std::vector<torch::Tensor> gradients() const;  // those that are defined, in the order of the parameters

  // "0/exp_avg", "0/step" and so on: PyTorch's names below the parameter's number; none for one without a gradient so
  // far. In 8 bits "0/exp_avg" has the codes (uint8) and "0/exp_avg_absmax" the largest magnitude of each block. Options
  // and learning rates are not in it. load() copies, into the dtypes that this optimizer keeps, whatever AdamState was
  // saved; it throws Error, before any change, where number, names or shapes are not this optimizer's.
  State state() const;
  void load(const State& state);

 protected:
  explicit FusedOptimizer(const std::vector<struct FusedGroup>& groups);

 private:
  std::vector<torch::Tensor> parameters_;
  std::vector<double> lr_;
  std::vector<struct FusedBucket> buckets_;
  std::shared_ptr<struct BackwardPass> pass_;  // from the first step_in_backward() on
};

// AdamW, Adam and SGD, from parameters with the same options or from groups.
template <class Options>
class VERNIER_API Fused final : public FusedOptimizer {
 public:
  using Group = ParameterGroup<Options>;
  explicit Fused(std::vector<torch::Tensor> parameters, Options options = {});
  explicit Fused(const std::vector<Group>& groups);
};
extern template class Fused<AdamWOptions>;
extern template class Fused<AdamOptions>;
extern template class Fused<SGDOptions>;
using AdamW = Fused<AdamWOptions>;
using Adam = Fused<AdamOptions>;
using SGD = Fused<SGDOptions>;

}  // namespace vernier
