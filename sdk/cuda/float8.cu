// The casts to fp8. Also compiled for the host (host_library.cpp).
#include "float8.h"

#include "functions.h"

namespace vernier::gpu {

namespace {

constexpr std::int64_t side = TransposeBytes::side;

std::int64_t tiles(std::int64_t length) {
  return (length + side - 1) / side;
}

template <class Input>
Trouble cast_from(const Float8Cast& c, Stream stream) {
  const auto* const from = static_cast<const typename Input::Number*>(c.from);
  const std::int64_t across = tiles(c.columns), blocks = across * tiles(c.rows);
  if (c.is_e5m2) return launch(CastToFloat8<Input, 5, 2>{from, across, c, 57344.0F}, blocks, stream);
  return launch(CastToFloat8<Input, 4, 3>{from, across, c, 448.0F}, blocks, stream);
}

}  // namespace

Trouble cast_to_float8(const Float8Cast& cast, Stream stream) {
  return with_kind(cast.kind, [&](auto kind) { return cast_from<decltype(kind)>(cast, stream); });
}

Trouble transpose_bytes(const std::uint8_t* from, std::int64_t rows, std::int64_t columns, std::uint8_t* to,
                        Stream stream) {
  const std::int64_t across = tiles(columns);
  return launch(TransposeBytes{from, rows, columns, across, to}, across * tiles(rows), stream);
}

}  // namespace vernier::gpu
