// The kernels over rows with AVX-512.
#include <cmath>
#include <type_traits>

#include "row_kernel.h"

// From here on everything is compiled for AVX-512.
#include "wide.h"

// The rules, in the terms of wide.h.
#include "row_rules.h"

namespace vernier {

template <class Element>
const RowKernels<Element>& wide_row_kernels() {
  return row_kernels<Element>;
}
template const RowKernels<float>& wide_row_kernels();
template const RowKernels<c10::BFloat16>& wide_row_kernels();
template const RowKernels<c10::Half>& wide_row_kernels();

}  // namespace vernier

#ifdef __clang__
#pragma clang attribute pop
#endif
