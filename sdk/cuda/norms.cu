// LayerNorm and RMSNorm. Also compiled for the host (host_library.cpp).
#include "norms.h"

#include "functions.h"

namespace vernier::gpu {

Trouble norm(const NormRows& rows, Stream stream) {
  return with_kind(rows.kind, [&](auto kind) {
    using Kernel = Norm<decltype(kind)>;
    constexpr std::int64_t at_once = Kernel::threads / 32;
    return launch(Kernel{rows}, (rows.rows + at_once - 1) / at_once, stream);
  });
}

Trouble norm_slopes(const NormSlopes& rows, Stream stream) {
  const std::int64_t parts = least(rows.rows, norm_parts);
  const auto trouble = with_kind(rows.kind, [&](auto kind) {
    using Numbers = decltype(kind);
    if (rows.columns <= 1024) return launch(NormBackward<Numbers, 1024>{rows}, parts, stream);
    return launch(NormBackward<Numbers, most_norm_columns>{rows}, parts, stream);
  });
  if (trouble != nullptr) return trouble;
  const std::int64_t columns = 2 * rows.columns, at_once = SumOfParts::columns_at_once;
  return launch(SumOfParts{rows.scratch, parts, columns, rows.weight_slopes, rows.bias_slopes},
                (columns + at_once - 1) / at_once, stream);
}

}  // namespace vernier::gpu
