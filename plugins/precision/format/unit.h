// The option `unit` of precision/format: matrix units that add up products.
#pragma once

#include <vernier/options.h>

#include <deque>

#include "recipe.h"

namespace formats {

// Reads unit = {use, fraction, chunk, result, promote_every, y, dx, dw} into the recipes. Refuses a unit that cannot
// be, or that does not take the formats of the built-in quantizers, and recipes in which no product has two rounded
// operands.
void read_units(vernier::Options& options, std::deque<Recipe>& recipes);

}  // namespace formats
