// The kernels of rows and of activations for AVX2. Compiled with vectorisation, and without the compiler's own choice
// of fused multiplications (CMakeLists.txt).
#include <cmath>
#include <type_traits>

#include "activation_kernel.h"
#include "row_kernel.h"

// From here on everything is compiled for AVX2.
#include "base/simd_avx2.h"

// The rules, in its terms.
#include "activation_rules.h"
#include "row_rules.h"

#ifdef __clang__
#pragma clang attribute pop
#endif
