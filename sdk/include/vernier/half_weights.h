// Weights in 16 bits: levels O2 and O3 of mixed precision (Micikevicius et al., Mixed Precision Training, ICLR 2018;
// names as in NVIDIA's apex). For precision policies and anybody's own loop:
//
//   vernier::HalfWeights weights(torch::kBFloat16, vernier::HalfWeights::Update::masters);
//   weights.prepare(run);                  // once, before the optimizer is made of the parameters' `owned`
//   loss.backward();
//   weights.collect(run);                  // then unscale, clip, and the optimizer's step on `owned`
//   weights.commit(run);
#pragma once

#include <torch/types.h>
#include <vernier/run.h>
#include <vernier/state.h>

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

namespace vernier {

// One model, one thread, any device. Nothing here makes the host wait for a GPU.
class VERNIER_API HalfWeights {
 public:
  // Half of the last place of a weight of 1 is 2^-9 in bfloat16: a smaller update is lost where it is rounded to
  // nearest. How it is kept, and what that takes beside 2 bytes a weight:
  enum class Update {
    masters,     // O2. 4 bytes: the optimizer works on float32 masters, the weights are those rounded to nearest
    nearest,     // O3. 0 bytes: the optimizer works on the weights themselves, its own state is in 16 bits too
    stochastic,  // O3. 0 bytes: up or down by chance, so that the mean is exact (Gupta et al., ICML 2015)
    kahan,       // O3. 2 bytes: what rounding took off is added next time (Zamirai et al., arXiv:2010.06192)
  };
  // Stochastic and Kahan give the optimizer a float32 copy of the weights that has memory from collect to commit only.

  // dtype: bfloat16 or float16. Throws Error on another, and on float16 with stochastic or kahan: both live on what
  // lies below a weight's last place. In bfloat16 that is the lower half of the float32; in float16 it underflows where
  // the weight is under 2^-2.
  HalfWeights(c10::ScalarType dtype, Update update);

  // Casts run.model's parameters in place: the tensors that the modules hold stay, with other memory. Sets `owned` of
  // run.parameters. What stays as it is: buffers, which are tables and averages that 16 bits may ruin; the weights of
  // LibTorch's BatchNorm and InstanceNorm, as in apex, for the kernels take 16-bit input with float32 weights; float64, which autocast leaves alone too; integers; and what `keeps` says by its dotted name. run.seed is that of
  // stochastic rounding. Throws Error where it holds a model already.
  void prepare(Run& run, const std::function<bool(const std::string& name)>& keeps = {});

  // After backward: the 16-bit gradients of `model` become float32 ones of `owned`, and are freed. They may still be
  // scaled: an inf stays inf, a nan nan. A second call before commit leaves the values of `owned` alone.
  void collect();

  // After the optimizer's step: `owned` into `model`. Where run.found_inf is not 0 no weight changes, in no bit.
  void commit(const Run& run);

  // Gives the model back, between steps: every tensor in the dtype that it had, with the best value that there is (the
  // master; weight plus compensation), `owned` the model's own again. An optimizer has to be made anew.
  void release(Run& run);

  // Masters, compensation, and where the random numbers are; under the parameters' names. The 16-bit weights are in the
  // model. After prepare, as the model's own. load() throws Error where a name, shape or dtype is not this model's.
  State save() const;
  void load(const State& state);

 private:
  struct Weight {
    std::string name;
    torch::Tensor model, owned;
    torch::Tensor compensation;  // Kahan: bfloat16, what to add to `model` for its best value
  };
  struct Cast {  // of a parameter
    torch::Tensor tensor;
    c10::ScalarType before;
  };
  void cast(const torch::Tensor& tensor);
  void commit_kahan(const torch::Tensor& found_inf);
  void commit_stochastic();
  torch::Tensor best(const Weight& weight) const;  // float32
  bool has_copies() const { return update_ == Update::stochastic || update_ == Update::kahan; }
  Tensors tensors() const;  // what save() holds

  c10::ScalarType dtype_;
  Update update_;
  std::uint64_t seed_ = 0;
  std::int64_t draws_ = 0;  // commits of stochastic rounding so far; each has random numbers of its own
  std::vector<Weight> weights_;
  std::vector<Cast> casts_;
};

}  // namespace vernier
