// The kernels over rows with AVX2.
#include <cmath>
#include <type_traits>

#include "row_kernel.h"

// From here on everything is compiled for AVX2.
#include "narrow.h"

// The rules, in the terms of narrow.h.
#include "row_rules.h"

namespace vernier {

template <class Element>
const RowKernels<Element>& narrow_row_kernels() {
  return row_kernels<Element>;
}
template const RowKernels<float>& narrow_row_kernels();
template const RowKernels<c10::BFloat16>& narrow_row_kernels();
template const RowKernels<c10::Half>& narrow_row_kernels();

}  // namespace vernier

#ifdef __clang__
#pragma clang attribute pop
#endif
