// The kernels of rows, activations and pooling for AVX-512. Compiled with vectorisation, and without the compiler's own
// choice of fused multiplications (CMakeLists.txt).
#include <cmath>
#include <cstddef>
#include <type_traits>
#include <utility>

#include "activation_kernel.h"
#include "pool_kernel.h"
#include "row_kernel.h"

// From here on everything is compiled for AVX-512.
#include "base/simd_avx512.h"

// The rules, in its terms.
#include "activation_rules.h"
#include "pool_rules.h"
#include "row_rules.h"

namespace vernier {

VERNIER_DEFINE_KERNELS(instructions, activation_kernels<c10::Half>, ActivationKernels<c10::Half>)

}  // namespace vernier

#ifdef __clang__
#pragma clang attribute pop
#endif
