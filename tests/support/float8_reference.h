// fp8 by its definition (Micikevicius et al., FP8 Formats for Deep Learning, 2022), in double precision and one number
// at a time: what the tests compare with.
#pragma once

#include <vernier/float8.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <vector>

struct Float8Reference {
  int exponent_bits, mantissa_bits, bias;
  std::uint8_t largest_code;  // the largest finite number's code; codes from 0 to it are in the order of their numbers

  static Float8Reference of(torch::ScalarType format) {
    return format == torch::kFloat8_e4m3fn ? Float8Reference{4, 3, 7, 0x7E} : Float8Reference{5, 2, 15, 0x7B};
  }

  double decode(std::uint8_t code) const {
    const int exponent = (code & 0x7F) >> mantissa_bits, mantissa = code & ((1 << mantissa_bits) - 1);
    const double sign = (code & 0x80) != 0 ? -1.0 : 1.0;
    if ((code & 0x7F) > largest_code) {
      return mantissa_bits == 2 && mantissa == 0 ? sign * HUGE_VAL : std::numeric_limits<double>::quiet_NaN();
    }
    if (exponent == 0) return sign * std::ldexp(mantissa, 1 - bias - mantissa_bits);
    return sign * std::ldexp(mantissa + (1 << mantissa_bits), exponent - bias - mantissa_bits);
  }

  // Nearest, ties to the even code, saturating; nan becomes a nan.
  std::uint8_t encode(double number) const {
    if (std::isnan(number)) return 0x7F;
    const std::uint8_t sign = std::signbit(number) ? 0x80 : 0;
    const double magnitude = std::abs(number);
    if (magnitude >= decode(largest_code)) return sign | largest_code;
    std::uint8_t below = 0, above = largest_code;  // magnitude is in [below, above)
    while (above - below > 1) {
      const auto middle = static_cast<std::uint8_t>((above + below) / 2);
      (decode(middle) <= magnitude ? below : above) = middle;
    }
    const double to_below = magnitude - decode(below), to_above = decode(above) - magnitude;
    const bool takes_above = to_above < to_below || (to_above == to_below && below % 2 == 1);
    return sign | (takes_above ? above : below);
  }

  double round(double number) const { return decode(encode(number)); }
};

// A matrix in double precision.
struct Matrix {
  std::int64_t rows = 0, columns = 0;
  std::vector<double> values;

  explicit Matrix(const torch::Tensor& tensor) : rows(tensor.size(0)), columns(tensor.size(1)) {
    const auto numbers = tensor.detach().to(torch::kFloat64).contiguous();
    values.assign(numbers.const_data_ptr<double>(), numbers.const_data_ptr<double>() + numbers.numel());
  }
  Matrix(std::int64_t r, std::int64_t c) : rows(r), columns(c), values(static_cast<std::size_t>(r * c)) {}
  double& at(std::int64_t r, std::int64_t c) { return values[static_cast<std::size_t>(r * columns + c)]; }
  double at(std::int64_t r, std::int64_t c) const { return values[static_cast<std::size_t>(r * columns + c)]; }
  torch::Tensor tensor() const { return torch::tensor(values, torch::kFloat64).view({rows, columns}); }

  Matrix transposed() const {
    Matrix other(columns, rows);
    for (std::int64_t r = 0; r < rows; ++r)
      for (std::int64_t c = 0; c < columns; ++c) other.at(c, r) = at(r, c);
    return other;
  }
};

inline Matrix product(const Matrix& a, const Matrix& b) {
  Matrix result(a.rows, b.columns);
  for (std::int64_t r = 0; r < a.rows; ++r)
    for (std::int64_t k = 0; k < a.columns; ++k)
      for (std::int64_t c = 0; c < b.columns; ++c) result.at(r, c) += a.at(r, k) * b.at(k, c);
  return result;
}

// largest / amax, rounded as the scale is: once to float32, then down to a power of two.
inline double reference_scale(double amax, torch::ScalarType format, double margin, bool power_of_two) {
  if (!std::isfinite(amax) || amax == 0) return 1;
  const auto reference = Float8Reference::of(format);
  const double wanted = reference.decode(reference.largest_code) * std::exp2(-margin) / amax;
  const double largest = std::numeric_limits<float>::max();
  const double scale = wanted > largest ? largest : static_cast<float>(wanted);
  return power_of_two ? std::exp2(std::floor(std::log2(scale))) : scale;
}

// Returns a matrix after it was quantised and dequantised, each block with its scale: `given`, or of the block itself.
inline Matrix quantized(const Matrix& matrix, torch::ScalarType format, vernier::ScaleBlock block, double margin,
                        bool power_of_two, double given = 0) {
  Matrix result = matrix;
  const auto reference = Float8Reference::of(format);
  const auto height = block.rows == 0 ? matrix.rows : block.rows;
  const auto width = block.columns == 0 ? matrix.columns : block.columns;
  for (std::int64_t top = 0; top < matrix.rows; top += height) {
    for (std::int64_t left = 0; left < matrix.columns; left += width) {
      const auto bottom = std::min(top + height, matrix.rows), right = std::min(left + width, matrix.columns);
      double amax = 0;
      for (auto r = top; r < bottom; ++r)
        for (auto c = left; c < right; ++c) amax = std::max(amax, std::abs(matrix.at(r, c)));
      const double scale = given != 0 ? given : reference_scale(amax, format, margin, power_of_two);
      for (auto r = top; r < bottom; ++r)
        for (auto c = left; c < right; ++c)
          result.at(r, c) = reference.round(static_cast<float>(matrix.at(r, c) * scale)) / scale;
    }
  }
  return result;
}
