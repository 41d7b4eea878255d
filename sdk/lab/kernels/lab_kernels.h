// The tables of kernels.inc, for best_kernels() of base/kernels.h.
#pragma once

#include "base/kernels.h"

namespace vernier {

struct AccumulatorKernels;
struct FormatKernels;
#define KERNELS VERNIER_DECLARE_KERNELS
#include "kernels.inc"
#undef KERNELS

}  // namespace vernier
