// Rotary positions (Su et al. 2021, arXiv:2104.09864) with the scalings of Hugging Face's transformers
// (modeling_rope_utils.py): halves of a head are turned, not pairs.
#pragma once

#include <torch/types.h>

#include <cstdint>
#include <utility>

#include "../language/config.h"

namespace llama {

class Rope {
 public:
  // Reads rope_parameters (transformers 5) or rope_scaling and rope_theta (4). head_width: even. Throws Error for a
  // kind that is not known and for numbers that are missing or out of range.
  Rope(const language::Config& config, std::int64_t head_width, std::int64_t longest);

  // Cosines and sines [time, head_width / 2] in float32 for positions from 0. With "dynamic" scaling they depend on the
  // number of positions; transformers keeps those of a longer batch before, which this does not.
  std::pair<torch::Tensor, torch::Tensor> tables(std::int64_t time, torch::Device device);
  // The most positions for which the tables begin as those of fewer do; 0: any number.
  std::int64_t cacheable() const { return kind_ == Kind::dynamic ? longest_ : 0; }

 private:
  enum class Kind { plain, linear, dynamic, llama3, yarn };
  void read_yarn(const language::Config& part, double original);
  torch::Tensor frequencies(std::int64_t time) const;
  double correction(double rotations, double original) const;
  static Kind kind_of(const language::Config& part);

  Kind kind_ = Kind::plain;
  std::int64_t width_, longest_;
  double theta_ = 10000, factor_ = 1, original_ = 0;
  double low_ = 0, high_ = 0;                       // llama3: frequency factors; yarn: the numbers of frequencies
  double amplitude_ = 1;                            // of cosines and sines
  std::pair<torch::Tensor, torch::Tensor> newest_;  // of a call before
};

// Queries or keys [batch, heads, time, head_width], turned by their positions.
torch::Tensor turned(const torch::Tensor& x, const torch::Tensor& cosines, const torch::Tensor& sines);

}  // namespace llama
