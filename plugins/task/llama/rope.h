// Rotary positions (Su et al. 2021, arXiv:2104.09864) with the scalings of Hugging Face's transformers
// (modeling_rope_utils.py).
#pragma once

#include <torch/types.h>

#include <cstdint>
#include <utility>
#include <vector>

#include "../language/config.h"

namespace llama {

struct RopeOptions {
  std::int64_t width = 0;      // width of a head; even
  std::int64_t longest = 0;    // max_position_embeddings
  double theta = 10000;        // the base, unless the part has one
  double original = 0;         // original_max_position_embeddings outside the part, which wins; 0: none
  double partial = 1;          // the share of a head that turns, where the part has none
  bool turns_in_part = false;  // `partial` may be below 1
  bool is_phi = false;         // the only scaling is "longrope"
};

class Rope {
 public:
  // Reads rope_parameters (transformers 5) or rope_scaling (4). Throws Error for a kind that is not known and for
  // numbers that are missing or out of range.
  Rope(const language::Config& part, const RopeOptions& options);

  // Cosines and sines [time, turned width / 2] in float32 for positions from 0. With "dynamic" and "longrope" they
  // depend on the number of positions; transformers keeps those of a longer batch before, which this does not.
  // longest: of so many positions as texts have, where `time` counts columns that fill them up; 0: of `time`.
  std::pair<torch::Tensor, torch::Tensor> tables(std::int64_t time, torch::Device device, std::int64_t longest = 0);
  // The most positions for which the tables begin as those of fewer do; 0: any number.
  std::int64_t cacheable() const;
  std::int64_t context() const { return longest_; }

 private:
  enum class Kind : std::uint8_t { plain, linear, dynamic, llama3, yarn, longrope };
  void read_yarn(const language::Config& part, double original);
  void read_longrope(const language::Config& part);
  torch::Tensor frequencies(std::int64_t time) const;
  double correction(double rotations, double original) const;
  static Kind kind_of(const language::Config& part, bool is_phi);

  Kind kind_ = Kind::plain;
  std::int64_t width_, longest_;
  double theta_ = 10000, factor_ = 1, original_ = 0;
  double low_ = 0, high_ = 0;                       // llama3: frequency factors; yarn: the numbers of frequencies
  double amplitude_ = 1;                            // factor of cosines and sines
  std::vector<double> short_, long_;                // longrope: divisors of the frequencies
  std::pair<torch::Tensor, torch::Tensor> newest_;  // tables of an earlier call
  std::int64_t newest_longest_ = 0;                 // the number of positions that they depend on
};

// Queries or keys [batch, heads, time, width], of which the first numbers are turned by their positions: as many as
// cosines and sines have together. is_paired: neighbours are turned together, and else a number of each half.
torch::Tensor turned(const torch::Tensor& x, const torch::Tensor& cosines, const torch::Tensor& sines, bool is_paired);

}  // namespace llama
