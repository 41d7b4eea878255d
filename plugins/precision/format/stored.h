// Numbers that stay from one step to the next, in a format: weights, and the averages of the optimizer.
#pragma once

#include <vernier/lab/tensor_format.h>
#include <vernier/options.h>
#include <vernier/plugin.h>
#include <vernier/run.h>

#include <functional>
#include <string>

namespace formats {

std::uint64_t drawn_seed();
// Draws the seed of stochastic rounding from LibTorch's generator, as dropout does: a checkpoint has its state, and a
// recomputation repeats its draws.
vernier::Draw drawn(vernier::Draw draw);

bool is_float(const torch::Tensor& tensor);  // its dtype is one that is rounded

// Rounds a tensor in place. Its rows have blocks; a vector is one row.
void round_stored(torch::Tensor tensor, const vernier::TensorFormat& format, const vernier::Draw& draw);

// The option `optimizer_state` of precision/format.
class StoredAverages {
 public:
  StoredAverages(const vernier::Options& options, vernier::TensorFormat format)
      : format_(std::move(format)), options_(options) {}

  // Refuses optimizers of which the state is not that of single parameters.
  vernier::Contradiction contradicts(const vernier::Plugin& other) const;
  // Called after each update that was applied. Rounds the state of each parameter that `wanted` takes, and draws once,
  // so that ranks with parts of the state stay alike. Throws Error if the optimizer has no averages in float32.
  void round(vernier::Run& run, const vernier::Draw& draw, const std::function<bool(const std::string&)>& wanted) const;

 private:
  vernier::TensorFormat format_;
  vernier::Options options_;  // for error messages
};

}  // namespace formats
