// Weights in 16 bits: levels O2 and O3 of mixed precision, named as in NVIDIA's apex. Source: Micikevicius et al.,
// Mixed Precision Training, ICLR 2018. For precision plugins and for your own loop:
//
//   vernier::HalfWeights weights(torch::kBFloat16, vernier::HalfWeights::Update::masters);
//   weights.prepare(*model, parameters, seed);  // once, before the optimizer is made from the parameters' `master`
//   loss.backward();
//   weights.collect();  // then unscale, clip, and step the optimizer, which changes `master`
//   weights.commit(skip_update);
#pragma once

#include <vernier/parameter.h>
#include <vernier/state.h>
#include <vernier/tensor.h>

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

namespace vernier {

// For one model, on one thread, on any device. No function waits for a GPU.
class VERNIER_API HalfWeights {
 public:
  // How small updates are kept. Rounding to nearest loses an update of less than 2^-9 to a bfloat16 weight of 1. The
  // bytes are those beside the 2 bytes of each weight.
  enum class Update {
    masters,     // O2, 4 bytes: the optimizer updates float32 master weights, which are rounded to the weights
    nearest,     // O3, 0 bytes: the optimizer updates the weights themselves; its state is in 16 bits too
    stochastic,  // O3, 0 bytes: rounds up or down at random, so that the mean is exact (Gupta et al., ICML 2015)
    kahan,       // O3, 2 bytes: the rounding error is added to the next update (Zamirai et al., arXiv:2010.06192)
  };
  // With stochastic and kahan, the optimizer gets a float32 copy of the weights. It has memory only from collect() to
  // commit().

  // dtype: bfloat16 or float16. Throws Error for others, and for float16 with stochastic or kahan, because both need
  // the bits below a weight's last place. In bfloat16 these are the lower half of the float32. In float16 they
  // underflow for weights under 2^-2.
  HalfWeights(c10::ScalarType dtype, Update update);
  bool has_float32() const { return update_ != Update::nearest; }  // whether the optimizer gets float32 weights

  // Casts the parameters of `model` in place: the modules keep their tensors, which get new memory. Sets `master` of
  // `parameters`. The seed is that of stochastic rounding. Throws Error if it already holds a model. Not cast are
  //   - buffers: 16 bits may ruin tables and running averages;
  //   - the weights of LibTorch's BatchNorm and InstanceNorm, as in apex: their kernels take float32 weights;
  //   - float64 parameters, which autocast leaves alone too, and integers;
  //   - parameters for whose dotted name `keeps` returns true.
  // Where a parameter is not `owned`, its `master` takes a gradient, and never has memory.
  void prepare(const torch::nn::Module& model, std::vector<Parameter>& parameters, std::uint64_t seed,
               const std::function<bool(const std::string& name)>& keeps = {});

  // Call it after backward. Moves the 16-bit gradients of `model` to `master`, in float32. They may still be scaled:
  // inf and NaN stay what they are. A second call before commit() keeps the values of `master`.
  void collect();

  // Call it after the optimizer's step. Rounds `master` into `model`. If skip_update is not 0, no bit of the weights
  // changes: float32 0-dim, on the device of the weights; undefined: 0.
  void commit(const torch::Tensor& skip_update = {});

  // Call it between steps. Gives every tensor of the model its old dtype, with the most exact value: the master weight,
  // or weight plus compensation. `master` is the model's own tensor again. The optimizer must be made anew.
  void release(std::vector<Parameter>& parameters);

  // Master weights and compensation under the parameters' names, and the position of the random numbers. state_dict()
  // shares its tensors. The 16-bit weights are part of the model. Call load_state_dict() after prepare(); it copies,
  // and throws Error, before any change, if a name, shape or dtype is not this model's.
  State state_dict() const;
  void load_state_dict(const State& state);

 private:
  struct Weight {
    std::string name;
    torch::Tensor model, master;
    torch::Tensor compensation;  // kahan: bfloat16; `model` plus this is the most exact value
    bool is_owned = true;        // false: another rank updates it, and sends its value for `model`
  };
  struct Cast {
    torch::Tensor tensor;
    c10::ScalarType before;
  };
  void cast(const torch::Tensor& tensor);
  void commit_kahan(const torch::Tensor& skip_update);
  void commit_stochastic();
  torch::Tensor best(const Weight& weight) const;  // float32
  bool has_copies() const { return update_ == Update::stochastic || update_ == Update::kahan; }
  Tensors tensors(bool owned = true) const;  // tensors of state_dict(), or names of those that other ranks keep

  c10::ScalarType dtype_;
  Update update_;
  std::uint64_t seed_ = 0;
  std::int64_t draws_ = 0;  // commits with stochastic rounding so far; each has its own random numbers
  std::vector<Weight> weights_;
  std::vector<Cast> casts_;
};

}  // namespace vernier
