// The laws of quantizers, which are tried before the first step.
#pragma once

#include <vernier/lab/quantizer.h>

namespace formats {

// Throws Error with Error::Kind::plugin if quantize() changes its operand, returns another shape or dtype, returns
// other numbers for the same operand and seed, makes zeros or NaN into something else, or is not unbiased though it
// says so. The quantizer's state is then what it was.
void try_quantizer(vernier::Quantizer& quantizer, vernier::Slot slot);

}  // namespace formats
