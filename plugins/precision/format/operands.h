// The options `operands` and `rotate`: quantizers by operand, built in and of strangers.
#pragma once

#include <vernier/options.h>

#include <string>
#include <vector>

#include "names.h"
#include "recipe.h"
#include "rounding.h"

namespace formats {

// A quantizer of the run, and the key of its state in a checkpoint, such as "g" or "layers.1.dw.x".
struct Placed {
  std::string place;
  std::shared_ptr<vernier::Quantizer> quantizer;
};

// The format and rounding of [precision]. An operand's table takes from them what it does not say.
struct Usual {
  std::string use;
  RoundingOptions rounding;
};
using Usuals = std::array<Usual, vernier::slot_count>;

// Refuses an option of rounding that none of the quantizers has a use for. square: the one of weights, or null.
void refuse_unused(const vernier::Options& options, const RoundingOptions& rounding,
                   const std::vector<std::shared_ptr<FormatQuantizer>>& all, const FormatQuantizer* square);

// Reads both options into the recipe, which has the quantizers of the operands that are not named. place: "layers.1.".
void read_operands(vernier::Options& options, const Names& names, const Usuals& usuals, const std::string& place,
                   Recipe& recipe, std::vector<Placed>& placed);

// Makes the matrices of the rotations.
void prepare_rotations(Recipe& recipe, std::uint64_t seed);

}  // namespace formats
