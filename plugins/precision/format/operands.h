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

// Reads both options into a recipe. forward: the format of tables that name none. place: "" for the recipe of all
// layers, whose operands x, w and g have this format if they are not named; "layers.1." for one that changes what it
// names.
void read_operands(vernier::Options& options, const Names& names, const std::string& forward, const std::string& place,
                   Recipe& recipe, std::vector<Placed>& placed);

// Makes the matrices of the rotations.
void prepare_rotations(Recipe& recipe, std::uint64_t seed);

}  // namespace formats
