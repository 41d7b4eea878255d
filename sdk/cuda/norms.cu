// LayerNorm and RMSNorm. Also compiled for the host (host_library.cpp).
#include "norms.h"

#include "functions.h"

namespace vernier::gpu {

namespace {

// Calls body(numbers of x, numbers of y).
template <class Body>
Trouble with_kinds(Kind kind, Kind to, const Body& body) {
  return with_kind(to, [&](auto of_y) {
    if (kind != to) return body(Float32(), of_y);
    return body(of_y, of_y);
  });
}

}  // namespace

Trouble norm(const NormRows& rows, Stream stream) {
  return with_kinds(rows.kind, rows.to, [&](auto from, auto to) {
    using Kernel = Norm<decltype(from), decltype(to)>;
    constexpr std::int64_t at_once = Kernel::threads / 32;
    return launch(Kernel{rows}, (rows.rows + at_once - 1) / at_once, stream);
  });
}

Trouble norm_slopes(const NormSlopes& rows, Stream stream) {
  const std::int64_t parts = least(rows.rows, norm_parts);
  const auto trouble = with_kinds(rows.kind, rows.to, [&](auto from, auto to) {
    using From = decltype(from);
    using To = decltype(to);
    if (rows.columns <= 1024) return launch(NormBackward<From, To, 1024>{rows}, parts, stream);
    return launch(NormBackward<From, To, most_norm_columns>{rows}, parts, stream);
  });
  if (trouble != nullptr) return trouble;
  const std::int64_t columns = 2 * rows.columns, at_once = SumOfParts::columns_at_once;
  return launch(SumOfParts{rows.scratch, parts, columns, rows.weight_slopes, rows.bias_slopes},
                (columns + at_once - 1) / at_once, stream);
}

}  // namespace vernier::gpu
