// Numbers that a quantizer learns, one for each operand, such as the step of LSQ or the clip of PACT:
//
//   UnitOperand quantize(const Operand& of) override {
//     const double clip = clips_.of(of, [&] { return of.numbers.abs().max().item<double>(); });
//     return {of.numbers.clamp(-clip, clip)};
//   }
//   torch::Tensor gradient(const Operand& of, const torch::Tensor& g) override {
//     const double clip = clips_.of(of);
//     clips_.add_gradient(of, g * of.numbers.sign() * of.numbers.abs().ge(clip));
//     return g * of.numbers.abs().lt(clip);
//   }
//
// with remember("clip", clips_) in the constructor, and clips_.attach(bus) in attach().
#pragma once

#include <vernier/lab/quantizer.h>

#include <functional>
#include <map>
#include <string>

namespace vernier {

// An applied update moves each number by gradient descent, at `rate` times the run's learning rate factor, and pulls it
// toward 0 by `decay`. A number stays above 0, because it halves at most. All ranks have the same numbers after an
// update: the mean of those that they began with. Gradients are summed over micro-batches and ranks, without the scale
// of the loss. They are those of the last pass, where a step computes its batch several times. Main thread only.
class VERNIER_API LearnedNumbers {
 public:
  explicit LearnedNumbers(double rate, double decay = 0) : rate_(rate), decay_(decay) {}
  void attach(Bus& bus);
  // Returns the operand's number. The first call in training keeps what `first` returns, if that is above 0 and finite.
  double of(const Operand& operand, const std::function<double()>& first = {});
  // Adds the sum of a tensor to the gradient of the loss by the operand's number.
  void add_gradient(const Operand& operand, const torch::Tensor& parts);

  State save() const;
  void load(const State& state);

 private:
  struct Number {
    double value = 0, gradient = 0;
  };
  void learn(const Run& run);

  double rate_, decay_;
  bool is_new_pass_ = false;               // the next gradient is the first one of a pass over the batch
  std::map<std::string, Number> numbers_;  // by operand
};

}  // namespace vernier
