// The option `accumulate` of precision/format.
#pragma once

#include <vernier/options.h>

#include "products.h"

namespace formats {

// Reads accumulate = {mantissa, promote_every, chunk}, or returns nothing if it is not given. Refuses an accumulator
// that cannot be, one that is shorter than the numbers of the built-in quantizers, and recipes in which no product has
// two rounded operands.
std::optional<vernier::ProductAccumulator> read_accumulate(vernier::Options& options,
                                                           const std::deque<Recipe>& recipes);

}  // namespace formats
