// Rounds, with a quantizer, the numbers that stay from step to step: weights and the averages of the optimizer.
#pragma once

#include <vernier/options.h>
#include <vernier/plugin.h>
#include <vernier/run.h>

#include <functional>
#include <string>

#include "recipe.h"

namespace formats {

// Draws a seed from LibTorch's generator, as dropout does: a checkpoint has its state, and a recomputation repeats its
// draws.
std::uint64_t drawn_seed();

bool is_float(const torch::Tensor& tensor);  // its dtype is one that is rounded

// Rounds a tensor of a parameter in place. Blocks lie along its rows; a vector is one row.
void round_stored(torch::Tensor tensor, Slot slot, const std::string& parameter, vernier::Quantizer& quantizer,
                  std::uint64_t seed);

// The averages that an optimizer keeps, by `state` of the option `operands`.
class StoredAverages {
 public:
  explicit StoredAverages(const vernier::Options& options) : options_(options) {}

  // Refuses optimizers of which the state is not that of single parameters.
  static vernier::Contradiction contradicts(const vernier::Plugin& other);
  // Called after each update that was applied. Rounds the averages of each parameter by the quantizer that `of` returns
  // for it, or not for null. Draws once, so that ranks with parts of the state stay alike. Throws Error if the
  // optimizer has no averages in float32.
  void round(vernier::Run& run, const std::function<vernier::Quantizer*(const std::string&)>& of) const;

 private:
  vernier::Options options_;  // for error messages
};

}  // namespace formats
