// Definitions of row_kernel.h, on as many floats at a time as wide.h or narrow.h have. Include before it <cmath>,
// <type_traits> and row_kernel.h, then one of the two: this file is compiled for one kind of processor. Compiled with
// vectorisation, and without the compiler's own choice of fused multiplications (CMakeLists.txt).
#pragma once

#define VERNIER_BODY __attribute__((always_inline))

namespace vernier {

namespace {

// Calls body(column, which lanes) for a row. Two at a time hide how long an addition takes: body(..., 0 or 1).
template <class Body>
VERNIER_INLINE void along(std::int64_t columns, const Body& body) {
  std::int64_t column = 0;
  for (; column + 2 * lanes <= columns; column += 2 * lanes) {
    body(column, first(lanes), 0);
    body(column + lanes, first(lanes), 1);
  }
  if (column + lanes < columns) {
    body(column, first(lanes), 0);
    body(column + lanes, first(columns - column - lanes), 1);
  } else if (column < columns) {
    body(column, first(columns - column), 0);
  }
}

struct Sum {
  Numbers parts[2];
  VERNIER_INLINE Sum() : parts{filled(0), filled(0)} {}
  VERNIER_INLINE float whole() const { return sum_of(parts[0] + parts[1]); }
};

VERNIER_INLINE Numbers present(const float* numbers, std::int64_t column, Which which, float otherwise) {
  return numbers != nullptr ? load(numbers + column, which) : filled(otherwise);
}

template <class Element>
void layer_norm_rows(Rows rows, const Element* x, const float* weight, const float* bias, float eps, Element* y,
                     float* means, float* inverses) {
  const auto columns = rows.columns;
  for (std::int64_t row = 0; row < rows.count; ++row, x += columns, y += columns) {
    Sum sum, rests, squares;
    along(columns, [&](auto column, auto which, int i) VERNIER_BODY { sum.parts[i] += load(x + column, which); });
    const float nearly = sum.whole() / static_cast<float>(columns);
    const Numbers middle = filled(nearly);
    along(columns, [&](auto column, auto which, int i) VERNIER_BODY {
      const Numbers way = only(which, load(x + column, which) - middle);
      rests.parts[i] += way;
      squares.parts[i] = fused(way, way, squares.parts[i]);
    });
    const float rest = rests.whole() / static_cast<float>(columns);  // what rounding has taken off the mean
    const float variance = squares.whole() / static_cast<float>(columns) - rest * rest;
    // A variance beyond float32's range is not a number: scaled by 0 the row would hide it.
    const float inverse = std::isfinite(variance) ? 1 / std::sqrt(variance + eps) : std::nanf("");
    const Numbers scale = filled(inverse), shift = filled(rest);
    along(columns, [&](auto column, auto which, int) VERNIER_BODY {
      const Numbers normal = (load(x + column, which) - middle - shift) * scale;
      store(fused(normal, present(weight, column, which, 1), present(bias, column, which, 0)), y + column, which);
    });
    means[row] = nearly + rest;
    inverses[row] = inverse;
  }
}

template <class Element>
void rms_norm_rows(Rows rows, const Element* x, const float* weight, float eps, Element* y, float* inverses) {
  const auto columns = rows.columns;
  for (std::int64_t row = 0; row < rows.count; ++row, x += columns, y += columns) {
    Sum squares;
    along(columns, [&](auto column, auto which, int i) VERNIER_BODY {
      const Numbers at = load(x + column, which);
      squares.parts[i] = fused(at, at, squares.parts[i]);
    });
    inverses[row] = 1 / std::sqrt(squares.whole() / static_cast<float>(columns) + eps);
    const Numbers scale = filled(inverses[row]);
    along(columns, [&](auto column, auto which, int) VERNIER_BODY {
      store(load(x + column, which) * scale * present(weight, column, which, 1), y + column, which);
    });
  }
}

// Without means: of RMSNorm.
template <class Element>
void norm_rows_backward(Rows rows, const Element* dy, const Element* x, const float* weight, const float* means,
                        const float* inverses, Element* dx, float* weight_gradient, float* bias_gradient) {
  const auto columns = rows.columns;
  for (std::int64_t row = 0; row < rows.count; ++row, dy += columns, x += columns, dx += columns) {
    const Numbers middle = filled(means != nullptr ? means[row] : 0), scale = filled(inverses[row]);
    const auto normal = [&](std::int64_t column, Which which)
                            VERNIER_BODY { return (load(x + column, which) - middle) * scale; };
    Sum slopes, products;
    along(columns, [&](auto column, auto which, int i) VERNIER_BODY {
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
    });
    const Numbers mean = filled(means != nullptr ? slopes.whole() / static_cast<float>(columns) : 0);
    const Numbers part = filled(-products.whole() / static_cast<float>(columns));
    along(columns, [&](auto column, auto which, int) VERNIER_BODY {
      const Numbers slope = load(dy + column, which) * present(weight, column, which, 1);
      store(fused(normal(column, which), part, slope - mean) * scale, dx + column, which);
    });
  }
}

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
  return largest_of(larger(first(lanes), most[0], most[1]));
}

struct LogSum {
  float largest, rest;  // of x, and the logarithm of the sum of e^(x - largest)
};

// y = x - largest - rest.
template <class Element>
VERNIER_INLINE LogSum log_softmax_of(const Element* x, std::int64_t columns, Element* y) {
  const float largest = largest_in(x, columns);
  const Numbers most = filled(largest);
  Sum sum;
  along(columns, [&](auto column, auto which, int i)
                     VERNIER_BODY { sum.parts[i] += only(which, exponential(load(x + column, which) - most)); });
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
    along(rows.columns, [&](auto column, auto which, int i) VERNIER_BODY {
      const Numbers at = power(column, which);
      if (keeps) store(at, kept + column, which);
      sum.parts[i] += only(which, at);
    });
    const Numbers share = filled(1 / sum.whole());
    along(rows.columns, [&](auto column, auto which, int) VERNIER_BODY {
      store((keeps ? load(kept + column, which) : power(column, which)) * share, y + column, which);
    });
  }
}

template <class Element>
void log_softmax_rows_backward(Rows rows, const Element* dy, const Element* y, Element* dx) {
  const auto columns = rows.columns;
  for (std::int64_t row = 0; row < rows.count; ++row, dy += columns, y += columns, dx += columns) {
    Sum sum;
    along(columns, [&](auto column, auto which, int i) VERNIER_BODY { sum.parts[i] += load(dy + column, which); });
    const Numbers down = filled(-sum.whole());
    along(columns, [&](auto column, auto which, int) VERNIER_BODY {
      store(fused(exponential(load(y + column, which)), down, load(dy + column, which)), dx + column, which);
    });
  }
}

template <class Element>
void cross_entropy_rows(Rows rows, const Element* x, const std::int64_t* targets, std::int64_t ignored, Element* y,
                        float* losses) {
  for (std::int64_t row = 0; row < rows.count; ++row, x += rows.columns, y += rows.columns) {
    const auto sum = log_softmax_of(x, rows.columns, y);
    losses[row] = targets[row] == ignored ? 0 : sum.largest - static_cast<float>(x[targets[row]]) + sum.rest;
  }
}

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

template <class Element>
constexpr RowKernels<Element> row_kernels = {layer_norm_rows<Element>,
                                             rms_norm_rows<Element>,
                                             norm_rows_backward<Element>,
                                             sum_rows,
                                             log_softmax_rows<Element>,
                                             softmax_rows<Element>,
                                             log_softmax_rows_backward<Element>,
                                             cross_entropy_rows<Element>,
                                             cross_entropy_rows_backward<Element>};

}  // namespace

}  // namespace vernier
