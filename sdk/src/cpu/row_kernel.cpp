// Compiled with vectorisation, and without the compiler's own choice of fused multiplications (CMakeLists.txt).
#include "row_kernel.h"

#include <cmath>

#include "wide.h"

namespace vernier {

namespace {

// Calls body(column, which of sixteen) for a row. Two at a time hide how long an addition takes: body(..., 0 or 1).
template <class Body>
VERNIER_INLINE void along(std::int64_t columns, const Body& body) {
  std::int64_t column = 0;
  for (; column + 2 * lanes <= columns; column += 2 * lanes) {
    body(column, first(lanes), 0);
    body(column + lanes, first(lanes), 1);
  }
  for (int i = 0; column < columns; column += lanes, i = 1 - i) body(column, first(columns - column), i);
}

VERNIER_INLINE float sum_of(const __m512 (&parts)[2]) {
  return _mm512_reduce_add_ps(_mm512_add_ps(parts[0], parts[1]));
}

VERNIER_INLINE __m512 missing(const float* numbers, std::int64_t column, __mmask16 which, float otherwise) {
  return numbers != nullptr ? load(numbers + column, which) : _mm512_set1_ps(otherwise);
}

}  // namespace

void layer_norm_rows(Rows rows, const float* x, const float* weight, const float* bias, float eps, float* y,
                     float* means, float* inverses) {
  const auto columns = rows.columns;
  for (std::int64_t row = 0; row < rows.count; ++row, x += columns, y += columns) {
    __m512 sums[2] = {_mm512_setzero_ps(), _mm512_setzero_ps()}, squares[2] = {sums[0], sums[0]};
    along(
        columns, [&](auto column, auto which, int i)
                     __attribute__((always_inline)) { sums[i] = _mm512_add_ps(sums[i], load(x + column, which)); });
    const float nearly = sum_of(sums) / static_cast<float>(columns);
    const __m512 middle = _mm512_set1_ps(nearly);
    __m512 rests[2] = {_mm512_setzero_ps(), _mm512_setzero_ps()};
    along(
        columns, [&](auto column, auto which, int i) __attribute__((always_inline)) {
          const __m512 way = _mm512_maskz_sub_ps(which, load(x + column, which), middle);
          rests[i] = _mm512_add_ps(rests[i], way);
          squares[i] = _mm512_fmadd_ps(way, way, squares[i]);
        });
    const float rest = sum_of(rests) / static_cast<float>(columns);  // what rounding has taken off the mean
    const float variance = sum_of(squares) / static_cast<float>(columns) - rest * rest;
    // A variance beyond float32's range is no number: scaled by 0 the row would hide it.
    const float inverse = std::isfinite(variance) ? 1 / std::sqrt(variance + eps) : std::nanf("");
    const __m512 scale = _mm512_set1_ps(inverse), shift = _mm512_set1_ps(rest);
    along(
        columns, [&](auto column, auto which, int) __attribute__((always_inline)) {
          const __m512 way = _mm512_sub_ps(_mm512_sub_ps(load(x + column, which), middle), shift);
          const __m512 normal = _mm512_mul_ps(way, scale);
          store(_mm512_fmadd_ps(normal, missing(weight, column, which, 1), missing(bias, column, which, 0)), y + column,
                which);
        });
    means[row] = nearly + rest;
    inverses[row] = inverse;
  }
}

namespace {

VERNIER_INLINE float largest_of(const float* x, std::int64_t columns) {
  __m512 most[2] = {_mm512_set1_ps(-infinity), _mm512_set1_ps(-infinity)};
  along(
      columns, [&](auto column, auto which, int i) __attribute__((always_inline)) {
        most[i] = _mm512_mask_max_ps(most[i], which, most[i], load(x + column, which));
      });
  return _mm512_reduce_max_ps(_mm512_max_ps(most[0], most[1]));
}

}  // namespace

void log_softmax_rows(Rows rows, const float* x, float* y) {
  for (std::int64_t row = 0; row < rows.count; ++row, x += rows.columns, y += rows.columns) {
    const float largest = largest_of(x, rows.columns);
    const __m512 most = _mm512_set1_ps(largest);
    __m512 sums[2] = {_mm512_setzero_ps(), _mm512_setzero_ps()};
    along(
        rows.columns, [&](auto column, auto which, int i) __attribute__((always_inline)) {
          const __m512 power = exponential(_mm512_sub_ps(load(x + column, which), most));
          sums[i] = _mm512_mask_add_ps(sums[i], which, sums[i], power);
        });
    const __m512 log_sum = _mm512_set1_ps(std::log(sum_of(sums)));
    along(
        rows.columns, [&](auto column, auto which, int) __attribute__((always_inline)) {
          store(_mm512_sub_ps(_mm512_sub_ps(load(x + column, which), most), log_sum), y + column, which);
        });
  }
}

void softmax_rows(Rows rows, const float* x, float* y) {
  for (std::int64_t row = 0; row < rows.count; ++row, x += rows.columns, y += rows.columns) {
    const __m512 most = _mm512_set1_ps(largest_of(x, rows.columns));
    __m512 sums[2] = {_mm512_setzero_ps(), _mm512_setzero_ps()};
    along(
        rows.columns, [&](auto column, auto which, int i) __attribute__((always_inline)) {
          const __m512 power = exponential(_mm512_sub_ps(load(x + column, which), most));
          store(power, y + column, which);
          sums[i] = _mm512_mask_add_ps(sums[i], which, sums[i], power);
        });
    const __m512 share = _mm512_set1_ps(1 / sum_of(sums));
    along(
        rows.columns, [&](auto column, auto which, int) __attribute__((always_inline)) {
          store(_mm512_mul_ps(load(y + column, which), share), y + column, which);
        });
  }
}

void log_softmax_rows_backward(Rows rows, const float* dy, const float* y, float* dx) {
  const auto columns = rows.columns;
  for (std::int64_t row = 0; row < rows.count; ++row, dy += columns, y += columns, dx += columns) {
    __m512 sums[2] = {_mm512_setzero_ps(), _mm512_setzero_ps()};
    along(
        columns, [&](auto column, auto which, int i)
                     __attribute__((always_inline)) { sums[i] = _mm512_add_ps(sums[i], load(dy + column, which)); });
    const __m512 sum = _mm512_set1_ps(sum_of(sums));
    along(
        columns, [&](auto column, auto which, int) __attribute__((always_inline)) {
          const __m512 share = exponential(load(y + column, which));
          store(_mm512_fnmadd_ps(share, sum, load(dy + column, which)), dx + column, which);
        });
  }
}

}  // namespace vernier
