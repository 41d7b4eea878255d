// Optimizers that make one pass over weights, gradients and state. On a CPU they are six times as fast as torch::optim.
// Adam, AdamW and SGD have the numbers of Python's torch.optim with fused=True. Adam on float32 on a CPU has its own
// kernel. For any number of threads, it has the bits of LibTorch's kernel on one thread (on x86-64; elsewhere a last
// bit may differ). docs/guides/optimizers.md says the rest.
//
//   vernier::AdamW optimizer(model->parameters(), {.lr = 3e-4});
//   loss.backward();
//   optimizer.step();
//   optimizer.zero_grad();
#pragma once

#include <vernier/optim_options.h>
#include <vernier/optim_tensor_options.h>
#include <vernier/state.h>
#include <vernier/tensor.h>

#include <memory>
#include <vector>

namespace vernier {

// The base of all optimizers. Parameters are dense leaves of dtype float64, float32, bfloat16 or float16, on any
// devices. A constructor throws Error if one is not, if one is given twice, or if an option is out of range. Use an
// optimizer on one thread at a time.
class VERNIER_API FusedOptimizer {
 public:
  virtual ~FusedOptimizer();
  FusedOptimizer(const FusedOptimizer&) = delete;
  FusedOptimizer& operator=(const FusedOptimizer&) = delete;

  // Makes one update; call it after backward. Parameters without a gradient are skipped. The update uses the gradients
  // divided by grad_scale. Read gradients before, because some kernels also divide them in memory. If found_inf is not
  // 0, nothing changes, step counts included. Both are float32 0-dim or undefined. No host sync on a GPU. Throws Error,
  // before any change, if a gradient is sparse or differs from its parameter in dtype, device or shape.
  void step(const torch::Tensor& found_inf = {}, const torch::Tensor& grad_scale = {});

  // Replaces step(), so that the gradients never need memory all at once. During backward passes from now on, each
  // gradient is applied as soon as it is complete, and then freed (Lv et al., LOMO, arXiv:2306.09782). The bits are
  // those of step(). Call it before each such pass; with several micro-batches, before the last one's.
  // step_in_backward(false) makes passes accumulate gradients again, as at first. Gradients cannot be clipped or
  // scaled, and no update can be skipped. backward() throws Error if a gradient comes twice: in a second pass, or for a
  // parameter that several recomputed blocks share. Throws Error if another optimizer updates a parameter in backward,
  // or the parameter has another hook of this kind.
  void step_in_backward(bool on = true);

  void zero_grad(bool set_to_none = true);  // frees the gradients, or fills them with 0

  // Sets the learning rate from the next step on, for all groups or for one; the constructor's first group is 0.
  void set_lr(double lr);
  void set_lr(double lr, std::size_t group) { lr_.at(group) = lr; }
  double lr(std::size_t group = 0) const { return lr_.at(group); }

  const std::vector<torch::Tensor>& parameters() const { return parameters_; }
  std::vector<torch::Tensor> gradients() const;  // gradients that are defined, in the order of the parameters

  // The state under PyTorch's names below the parameter's index: "0/exp_avg", "0/step". Parameters that had no gradient
  // yet have no entries. With AdamState::eight_bit, "0/exp_avg" has the codes (uint8) and "0/exp_avg_absmax" the
  // largest magnitude of each block. Of the options only the learning rates are included: "param_groups/0/lr".
  // state_dict() shares its tensors. load_state_dict() copies, and converts from any AdamState. It throws Error, before
  // any change, if number, names or shapes are not this optimizer's. strict = false: it leaves out what is not kept.
  State state_dict() const;
  void load_state_dict(const State& state, bool strict = true);

 protected:
  explicit FusedOptimizer(const std::vector<struct FusedGroup>& groups);

 private:
  std::vector<torch::Tensor> parameters_;
  std::vector<double> lr_;
  std::vector<struct FusedBucket> buckets_;
  std::shared_ptr<struct BackwardPass> pass_;  // from the first step_in_backward() on
};

// From parameters with the same options, or from groups.
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
extern template class Fused<RMSpropOptions>;
extern template class Fused<AdagradOptions>;
extern template class Fused<LionOptions>;
extern template class Fused<LambOptions>;
extern template class Fused<AdafactorOptions>;
extern template class Fused<MuonOptions>;
extern template class Fused<AdadeltaOptions>;
extern template class Fused<NAdamOptions>;
extern template class Fused<RAdamOptions>;
extern template class Fused<AdamaxOptions>;
extern template class Fused<RpropOptions>;
extern template class Fused<ASGDOptions>;
using AdamW = Fused<AdamWOptions>;
using Adam = Fused<AdamOptions>;
using SGD = Fused<SGDOptions>;
using RMSprop = Fused<RMSpropOptions>;
using Adagrad = Fused<AdagradOptions>;
using Lion = Fused<LionOptions>;
using Lamb = Fused<LambOptions>;
using Adafactor = Fused<AdafactorOptions>;
using Muon = Fused<MuonOptions>;
using Adadelta = Fused<AdadeltaOptions>;
using NAdam = Fused<NAdamOptions>;
using RAdam = Fused<RAdamOptions>;
using Adamax = Fused<AdamaxOptions>;
using Rprop = Fused<RpropOptions>;
using ASGD = Fused<ASGDOptions>;

}  // namespace vernier
