// The softmax of cross entropy. Also compiled for the host (host_library.cpp).
#include "softmax.h"

#include "functions.h"

namespace vernier::gpu {

namespace {

// float16 has no room for slopes that no loss scale has enlarged.
template <class Numbers>
struct SlopesOf {
  using Kind = Numbers;
};
template <>
struct SlopesOf<Half> {
  using Kind = Float32;
};

}  // namespace

Trouble softmax_sums(const SoftmaxSums& rows, Stream stream) {
  return with_kind(rows.kind, [&](auto kind) { return launch(RowSums<decltype(kind)>{rows}, rows.rows, stream); });
}

Trouble softmax_slopes(const SoftmaxSlopes& rows, Stream stream) {
  return with_kind(rows.kind, [&](auto kind) {
    using Numbers = decltype(kind);
    return launch(RowSlopes<Numbers, typename SlopesOf<Numbers>::Kind>{rows}, rows.rows, stream);
  });
}

}  // namespace vernier::gpu
