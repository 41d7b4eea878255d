// Definitions of row_kernel.h in the terms of simd_avx512.h or simd_avx2.h. Include one of them before it.
#pragma once

namespace vernier {

namespace {

// A sum over a row. A lane adds 32 numbers in float32, and then goes on in float64: otherwise a large one would cost
// all that follow it their digits.
struct Sum {
  Numbers parts[2];
  Doubles before;
  bool has_before = false;
  VERNIER_INLINE Sum() : parts{filled(0), filled(0)}, before(no_doubles()) {}
  VERNIER_INLINE void next_chunk() {
    before = wider_sum(before, parts[0] + parts[1]);
    parts[0] = parts[1] = filled(0);
    has_before = true;
  }
  // Divided by a number.
  VERNIER_INLINE float over(std::int64_t count) const {
    const float last = sum_of(parts[0] + parts[1]);
    if (!has_before) return last / static_cast<float>(count);
    return static_cast<float>((static_cast<double>(last) + sum_of(before)) / static_cast<double>(count));
  }
  VERNIER_INLINE float whole() const {
    const float last = sum_of(parts[0] + parts[1]);
    return has_before ? static_cast<float>(static_cast<double>(last) + sum_of(before)) : last;
  }
};

VERNIER_INLINE Numbers present(const float* numbers, std::int64_t column, Which which, float otherwise) {
  return numbers != nullptr ? load(numbers + column, which) : filled(otherwise);
}

struct Moments {
  float mean, inverse;
};

// The same in float64 for one row: squares of its numbers are beyond float32's range, or one is not finite. is_centred:
// LayerNorm; false: RMSNorm.
template <class Element>
Moments norm_in_float64(std::int64_t columns, const Element* x, const float* weight, const float* bias, float eps,
                        bool is_centred, Element* y) {
  const auto number = [&](std::int64_t column) { return static_cast<double>(static_cast<float>(x[column])); };
  const auto count = static_cast<double>(columns);
  double sum = 0, squares = 0;
  for (std::int64_t column = 0; is_centred && column < columns; ++column) sum += number(column);
  const double mean = sum / count;
  for (std::int64_t column = 0; column < columns; ++column) {
    squares += (number(column) - mean) * (number(column) - mean);
  }
  const double inverse = 1 / std::sqrt(squares / count + static_cast<double>(eps));
  for (std::int64_t column = 0; column < columns; ++column) {
    const double scaled =
        (number(column) - mean) * inverse * static_cast<double>(weight != nullptr ? weight[column] : 1);
    y[column] =
        static_cast<Element>(static_cast<float>(scaled + static_cast<double>(bias != nullptr ? bias[column] : 0)));
  }
  return {static_cast<float>(mean), static_cast<float>(inverse)};
}

// The plain loop of a row, with mean and variance of x over it: y[i] = (x[i] - mean) * inverse * weight[i] + bias[i],
// inverse = 1 / sqrt(variance + eps). norm_in_float64() is it.
template <class Element>
void layer_norm_rows(Rows rows, const Element* x, const float* weight, const float* bias, float eps, Element* y,
                     float* means, float* inverses) {
  const auto columns = rows.columns;
  for (std::int64_t row = 0; row < rows.count; ++row, x += columns, y += columns) {
    Sum sum, rests, squares;
    along(
        columns, [&](auto column, auto which, int i) VERNIER_BODY { sum.parts[i] += load(x + column, which); }, sum);
    const float nearly = sum.over(columns);
    const Numbers middle = filled(nearly);
    along(
        columns,
        [&](auto column, auto which, int i) VERNIER_BODY {
          const Numbers way = only(which, load(x + column, which) - middle);
          rests.parts[i] += way;
          squares.parts[i] = fused(way, way, squares.parts[i]);
        },
        rests, squares);
    const float rest = rests.over(columns);  // the mean's rounding error
    const float variance = squares.over(columns) - rest * rest;
    if (!std::isfinite(variance)) [[unlikely]] {
      const auto moments = norm_in_float64(columns, x, weight, bias, eps, /*is_centred=*/true, y);
      means[row] = moments.mean, inverses[row] = moments.inverse;
      continue;
    }
    const float inverse = 1 / std::sqrt(variance + eps);
    const Numbers scale = filled(inverse), shift = filled(rest);
    along(columns, [&](auto column, auto which, int) VERNIER_BODY {
      const Numbers normal = (load(x + column, which) - middle - shift) * scale;
      store(fused(normal, present(weight, column, which, 1), present(bias, column, which, 0)), y + column, which);
    });
    means[row] = nearly + rest;
    inverses[row] = inverse;
  }
}

// The plain loop of a row: y[i] = x[i] * inverse * weight[i], inverse = 1 / sqrt(mean of x[i] * x[i] + eps).
template <class Element>
void rms_norm_rows(Rows rows, const Element* x, const float* weight, float eps, Element* y, float* inverses) {
  const auto columns = rows.columns;
  for (std::int64_t row = 0; row < rows.count; ++row, x += columns, y += columns) {
    Sum squares;
    along(
        columns,
        [&](auto column, auto which, int i) VERNIER_BODY {
          const Numbers at = load(x + column, which);
          squares.parts[i] = fused(at, at, squares.parts[i]);
        },
        squares);
    const float square = squares.over(columns);
    if (!std::isfinite(square)) [[unlikely]] {
      inverses[row] = norm_in_float64(columns, x, weight, nullptr, eps, /*is_centred=*/false, y).inverse;
      continue;
    }
    inverses[row] = 1 / std::sqrt(square + eps);
    const Numbers scale = filled(inverses[row]);
    along(columns, [&](auto column, auto which, int) VERNIER_BODY {
      store(load(x + column, which) * scale * present(weight, column, which, 1), y + column, which);
    });
  }
}

// The plain loop of a row, with n[i] = (x[i] - mean) * inverse and s[i] = dy[i] * weight[i]:
//   dx[i] = (s[i] - mean of s - n[i] * mean of s * n) * inverse;
//   weight_gradient[i] += dy[i] * n[i]; bias_gradient[i] += dy[i].
// RMSNorm has no means: mean of x and of s are 0.
template <class Element>
void norm_rows_backward(Rows rows, const Element* dy, const Element* x, const float* weight, const float* means,
                        const float* inverses, Element* dx, float* weight_gradient, float* bias_gradient) {
  const auto columns = rows.columns;
  for (std::int64_t row = 0; row < rows.count; ++row, dy += columns, x += columns, dx += columns) {
    const Numbers middle = filled(means != nullptr ? means[row] : 0), scale = filled(inverses[row]);
    const auto normal = [&](std::int64_t column, Which which)
                            VERNIER_BODY { return (load(x + column, which) - middle) * scale; };
    Sum slopes, products;
    along(
        columns,
        [&](auto column, auto which, int i) VERNIER_BODY {
          const Numbers above = load(dy + column, which), at = normal(column, which);
          const Numbers slope = above * present(weight, column, which, 1);
          slopes.parts[i] += slope;
          products.parts[i] = fused(slope, at, products.parts[i]);
          if (weight_gradient != nullptr) {
            store(fused(above, at, load(weight_gradient + column, which)), weight_gradient + column, which);
          }
          if (bias_gradient != nullptr) {
            store(above + load(bias_gradient + column, which), bias_gradient + column, which);
          }
        },
        slopes, products);
    const Numbers mean = filled(means != nullptr ? slopes.over(columns) : 0);
    const Numbers part = filled(-products.over(columns));
    along(columns, [&](auto column, auto which, int) VERNIER_BODY {
      const Numbers slope = load(dy + column, which) * present(weight, column, which, 1);
      store(fused(normal(column, which), part, slope - mean) * scale, dx + column, which);
    });
  }
}

// The plain loop: y[i] = sum of x[row][i] over the rows.
void sum_rows(Rows rows, const float* x, float* y) {
  along(rows.columns, [&](auto column, auto which, int) VERNIER_BODY {
    Numbers sum = filled(0);
    for (std::int64_t row = 0; row < rows.count; ++row) sum += load(x + row * rows.columns + column, which);
    store(sum, y + column, which);
  });
}

template <class Element>
VERNIER_INLINE float largest_in(const Element* x, std::int64_t columns) {
  Numbers most[2] = {filled(-infinity), filled(-infinity)};
  along(columns, [&](auto column, auto which, int i)
                     VERNIER_BODY { most[i] = larger(which, most[i], load(x + column, which)); });
  return largest_of(larger(all, most[0], most[1]));
}

struct LogSum {
  float largest, rest;  // largest: of x; rest: the logarithm of the sum of e^(x - largest)
};

// The plain loop of a row: y[i] = x[i] - largest - log(sum of exp(x[j] - largest)).
template <class Element>
VERNIER_INLINE LogSum log_softmax_of(const Element* x, std::int64_t columns, Element* y) {
  const float largest = largest_in(x, columns);
  const Numbers most = filled(largest);
  Sum sum;
  along(
      columns,
      [&](auto column, auto which, int i)
          VERNIER_BODY { sum.parts[i] += only(which, exponential(load(x + column, which) - most)); },
      sum);
  const float rest = std::log(sum.whole());
  const Numbers log_sum = filled(rest);
  along(columns, [&](auto column, auto which, int)
                     VERNIER_BODY { store(load(x + column, which) - most - log_sum, y + column, which); });
  return {largest, rest};
}

template <class Element>
void log_softmax_rows(Rows rows, const Element* x, Element* y) {
  for (std::int64_t row = 0; row < rows.count; ++row, x += rows.columns, y += rows.columns) {
    log_softmax_of(x, rows.columns, y);
  }
}

// The plain loop of a row: y[i] = exp(x[i] - largest) / (sum of exp(x[j] - largest)).
template <class Element>
void softmax_rows(Rows rows, const Element* x, Element* y) {
  constexpr bool is_float = std::is_same_v<Element, float>;
  constexpr std::int64_t room = is_float ? 1 : 4096;
  float powers[room];  // 16 bits would round them; of longer rows they are computed twice
  const bool keeps = is_float || rows.columns <= room;
  for (std::int64_t row = 0; row < rows.count; ++row, x += rows.columns, y += rows.columns) {
    const Numbers most = filled(largest_in(x, rows.columns));
    const auto power = [&](std::int64_t column, Which which)
                           VERNIER_BODY { return exponential(load(x + column, which) - most); };
    float* kept = powers;
    if constexpr (is_float) kept = y;
    Sum sum;
    along(
        rows.columns,
        [&](auto column, auto which, int i) VERNIER_BODY {
          const Numbers at = power(column, which);
          if (keeps) store(at, kept + column, which);
          sum.parts[i] += only(which, at);
        },
        sum);
    const Numbers share = filled(1 / sum.whole());
    along(rows.columns, [&](auto column, auto which, int) VERNIER_BODY {
      store((keeps ? load(kept + column, which) : power(column, which)) * share, y + column, which);
    });
  }
}

// The plain loop of a row: dx[i] = dy[i] - exp(y[i]) * (sum of dy).
template <class Element>
void log_softmax_rows_backward(Rows rows, const Element* dy, const Element* y, Element* dx) {
  const auto columns = rows.columns;
  for (std::int64_t row = 0; row < rows.count; ++row, dy += columns, y += columns, dx += columns) {
    Sum sum;
    along(
        columns, [&](auto column, auto which, int i) VERNIER_BODY { sum.parts[i] += load(dy + column, which); }, sum);
    const Numbers down = filled(-sum.whole());
    along(columns, [&](auto column, auto which, int) VERNIER_BODY {
      store(fused(exponential(load(y + column, which)), down, load(dy + column, which)), dx + column, which);
    });
  }
}

// The plain loop: log_softmax_rows(), and losses[row] = -y[target] before y is rounded, or 0 for an ignored target.
template <class Element>
void cross_entropy_rows(Rows rows, const Element* x, const std::int64_t* targets, std::int64_t ignored, Element* y,
                        float* losses) {
  for (std::int64_t row = 0; row < rows.count; ++row, x += rows.columns, y += rows.columns) {
    const auto sum = log_softmax_of(x, rows.columns, y);
    losses[row] = targets[row] == ignored ? 0 : sum.largest - static_cast<float>(x[targets[row]]) + sum.rest;
  }
}

// The plain loop of a row that is not ignored: dx[i] = (exp(y[i]) - (i == target)) * slope.
template <class Element>
void cross_entropy_rows_backward(Rows rows, const Element* y, const std::int64_t* targets, std::int64_t ignored,
                                 float slope, Element* dx) {
  for (std::int64_t row = 0; row < rows.count; ++row, y += rows.columns, dx += rows.columns) {
    const bool counts = targets[row] != ignored;
    const Numbers scale = filled(slope);
    along(rows.columns, [&](auto column, auto which, int) VERNIER_BODY {
      store(counts ? exponential(load(y + column, which)) * scale : filled(0), dx + column, which);
    });
    if (!counts) continue;
    const auto target = targets[row];
    dx[target] = static_cast<Element>(std::expm1(static_cast<float>(y[target])) * slope);
  }
}

// The plain loop of a row: now = max(largest, x...); sums = sums * exp(largest - now) + sum of exp(x[i] - now);
// largest = now.
template <class Element>
void add_rows_to_softmax(Rows rows, const Element* x, RowSums sums) {
  for (std::int64_t row = 0; row < rows.count; ++row, x += rows.columns) {
    const float before = sums.largest[row], largest = std::max(before, largest_in(x, rows.columns));
    const Numbers most = filled(largest == -infinity ? 0 : largest);  // so that e^-inf is 0 in a block without others
    Sum sum;
    along(
        rows.columns,
        [&](auto column, auto which, int i)
            VERNIER_BODY { sum.parts[i] += only(which, exponential(load(x + column, which) - most)); },
        sum);
    const double share = largest == before ? 1 : std::exp(static_cast<double>(before) - static_cast<double>(largest));
    sums.sums[row] = sums.sums[row] * share + static_cast<double>(sum.whole());
    sums.largest[row] = largest;
  }
}

// The plain loop of a row: y[i] = exp(x[i] - largest - log_sums) * factor - shift.
template <class Element, class Slope>
void scaled_softmax_rows(Rows rows, const Element* x, RowSums sums, const float* factors, const float* shifts,
                         Slope* y) {
  for (std::int64_t row = 0; row < rows.count; ++row, x += rows.columns, y += rows.columns) {
    const Numbers most = filled(sums.largest[row]), rest = filled(sums.log_sums[row]);
    const Numbers factor = filled(factors[row]), shift = filled(-shifts[row]);
    along(rows.columns, [&](auto column, auto which, int) VERNIER_BODY {
      store(fused(exponential(load(x + column, which) - most - rest), factor, shift), y + column, which);
    });
  }
}

// The plain loop: y[i] = To(x[i]).
template <class From, class To>
void convert(std::int64_t count, const From* x, To* y) {
  along(count, [&](auto at, auto which, int) VERNIER_BODY { store(load(x + at, which), y + at, which); });
}

template <class Element>
constexpr RowKernels<Element> row_kernels = {layer_norm_rows<Element>,
                                             rms_norm_rows<Element>,
                                             norm_rows_backward<Element>,
                                             sum_rows,
                                             log_softmax_rows<Element>,
                                             softmax_rows<Element>,
                                             log_softmax_rows_backward<Element>,
                                             cross_entropy_rows<Element>,
                                             cross_entropy_rows_backward<Element>,
                                             add_rows_to_softmax<Element>,
                                             scaled_softmax_rows<Element, typename RowKernels<Element>::Slope>,
                                             convert<Element, float>,
                                             convert<float, Element>};

}  // namespace

VERNIER_DEFINE_KERNELS(instructions, row_kernels<float>, RowKernels<float>)
VERNIER_DEFINE_KERNELS(instructions, row_kernels<c10::BFloat16>, RowKernels<c10::BFloat16>)
VERNIER_DEFINE_KERNELS(instructions, row_kernels<c10::Half>, RowKernels<c10::Half>)

}  // namespace vernier
