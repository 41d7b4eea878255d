// The kernels of rows, activations and pooling for AVX2. Compiled with vectorisation, and without the compiler's own
// choice of fused multiplications (CMakeLists.txt).
#include <cmath>
#include <cstddef>
#include <type_traits>
#include <utility>

#include "activation_kernel.h"
#include "pool_kernel.h"
#include "row_kernel.h"

// From here on everything is compiled for AVX2.
#include "base/simd_avx2.h"

// The rules, in its terms.
#include "activation_rules.h"
#include "pool_rules.h"
#include "row_rules.h"

#ifdef __clang__
#pragma clang attribute pop
#endif
