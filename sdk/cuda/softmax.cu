// The softmax of cross entropy. Also compiled for the host (host_library.cpp).
#include "softmax.h"

#include "functions.h"

namespace vernier::gpu {

Trouble softmax_sums(const SoftmaxSums& rows, Stream stream) {
  return with_kind(rows.kind, [&](auto kind) { return launch(RowSums<decltype(kind)>{rows}, rows.rows, stream); });
}

Trouble softmax_slopes(const SoftmaxSlopes& rows, Stream stream) {
  return with_kind(rows.kind, [&](auto kind) { return launch(RowSlopes<decltype(kind)>{rows}, rows.rows, stream); });
}

}  // namespace vernier::gpu
