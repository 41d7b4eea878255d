// The parts that simd_avx512.h and simd_avx2.h share. They include it.
#pragma once

namespace vernier {

namespace {

#define VERNIER_BODY __attribute__((always_inline))

// Calls body(column, which lanes) for a row, or any array. Two at a time hide how long an addition takes:
// body(..., 0 or 1). sums: those that it adds to.
template <class Body, class... Sums>
VERNIER_INLINE void along(std::int64_t columns, const Body& body, Sums&... sums) {
  constexpr std::int64_t chunk = 64 * lanes;
  std::int64_t column = 0;
  if constexpr (sizeof...(sums) > 0) {
    while (column + chunk < columns) {
      for (const auto end = column + chunk; column < end; column += 2 * lanes) {
        body(column, all, 0);
        body(column + lanes, all, 1);
      }
      (sums.next_chunk(), ...);
    }
  }
  for (; column + 2 * lanes <= columns; column += 2 * lanes) {
    body(column, all, 0);
    body(column + lanes, all, 1);
  }
  if (column + lanes < columns) {
    body(column, all, 0);
    body(column + lanes, first(columns - column - lanes), 1);
  } else if (column < columns) {
    body(column, first(columns - column), 0);
  }
}

constexpr float inverse_ln2 = 1.44269504088896341F;

// e^(x - n ln 2) with the polynomial of Cephes' expf. n: x / ln 2 as a whole number.
VERNIER_INLINE Numbers exponential_rest(Numbers x, Numbers n) {
  const Numbers r = fused(n, filled(2.12194440e-4F), fused(n, filled(-0.693359375F), x));
  Numbers p = filled(1.9875691500e-4F);
  for (const float next : {1.3981999507e-3F, 8.3334519073e-3F, 4.1665795894e-2F, 1.6666665459e-1F, 5.0000001201e-1F}) {
    p = fused(p, r, filled(next));
  }
  return fused(p, r * r, r) + filled(1);
}

}  // namespace

}  // namespace vernier
