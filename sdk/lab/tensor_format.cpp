#include <ATen/ATen.h>
#include <torch/types.h>
#include <vernier/error.h>
#include <vernier/lab/emulated_matmul.h>
#include <vernier/lab/tensor_format.h>
#include <vernier/options.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>

#include "base/parallel.h"
#include "lab/kernels/format_kernel.h"
#include "lab/kernels/lab_kernels.h"

namespace vernier {

namespace {

constexpr std::int64_t elements_a_task = 8192;

NumberFormat mx_integer(int bits) {
  auto format = number_format("int" + std::to_string(bits));
  format.mantissa = bits - 2;  // MXINT8's element is k / 64
  return format;
}

TensorFormat blocks(const std::string& name, const NumberFormat& element, std::int64_t block, const char* scale,
                    ScaleRule rule) {
  TensorFormat format;
  format.name = name;
  format.element = element;
  format.element.saturate = true;
  format.block = block;
  format.has_block_scale = true;
  format.scale = number_format(scale);
  format.rule = rule;
  return format;
}

const std::vector<TensorFormat>& named_blocks() {
  static const std::vector<TensorFormat> all = [] {
    const auto mx = [](const char* name, const NumberFormat& element) {
      return blocks(name, element, 32, "e8m0", ScaleRule::floor);
    };
    const auto bfp = [](const char* name, int bits) {
      return blocks(name, mx_integer(bits), 16, "e8m0", ScaleRule::floor);
    };
    auto nvfp4 = blocks("nvfp4", number_format("e2m1"), 16, "e4m3", ScaleRule::nearest);
    nvfp4.tensor_scale = true;
    return std::vector<TensorFormat>{mx("mxfp8", number_format("e4m3")),
                                     mx("mxfp8_e5m2", number_format("e5m2")),
                                     mx("mxfp6", number_format("e2m3")),
                                     mx("mxfp6_e3m2", number_format("e3m2")),
                                     mx("mxfp4", number_format("e2m1")),
                                     mx("mxint8", mx_integer(8)),
                                     nvfp4,
                                     bfp("bfp8", 8),
                                     bfp("bfp6", 6),
                                     bfp("bfp4", 4)};
  }();
  return all;
}

int exponent_of(std::uint64_t bits) {
  return static_cast<int>(bits >> 52 & 2047) - 1023;
}

// The scale of blocks from their amax. All operations are exact, or rounded once.
class Scales {
 public:
  Scales(const TensorFormat& format, double largest_of_tensor) : format_(format) {
    const auto& element = format.element;
    largest_ = element.largest();
    largest_bits_ = std::bit_cast<std::uint64_t>(largest_);
    element_exponent_ = element.largest_exponent();
    fraction_bits_ = element.kind == NumberFormat::Kind::floating ? element.mantissa : element.bits - 2;
    is_power_ = format.has_block_scale && format.scale.kind == NumberFormat::Kind::power_of_two;
    of_tensor_ = largest_of_tensor;
    if (format.has_block_scale) most_ = format.scale.largest();
    tensor_scale_ = 1 / format.headroom;
    if (format.tensor_scale)
      tensor_scale_ = static_cast<float>(largest_of_tensor / (most_ * largest_)) / format.headroom;
  }

  float operator()(float amax) const {
    if (std::isnan(amax)) return amax;
    if (amax == 0) return 1;
    if (is_power_) return power(amax) * tensor_scale_;
    if (!format_.has_block_scale) {
      const auto scale = static_cast<float>(amax / largest_) / format_.headroom;
      return std::isfinite(scale) && scale > 0 ? scale : 1;
    }
    return static_cast<float>(in_format(amax) * static_cast<double>(tensor_scale_));
  }

  // The part of the scale that a matrix unit has inside, and the factor that the whole tensor shares.
  float in_unit(float amax) const {
    if (amax == 0 || std::isnan(amax) || !format_.has_block_scale) return 1;
    return is_power_ ? power(amax) : static_cast<float>(in_format(amax));
  }
  float outside() const { return format_.has_block_scale ? tensor_scale_ : (*this)(static_cast<float>(of_tensor_)); }

 private:
  // The scale of a block as a number of a format with a mantissa.
  double in_format(float amax) const {
    return nearest(format_.tensor_scale ? amax * most_ / of_tensor_ : amax / largest_);
  }

  float power(float amax) const {
    const auto bits = std::bit_cast<std::uint64_t>(static_cast<double>(amax));
    constexpr std::uint64_t fraction = (1ULL << 52) - 1;
    int exponent = 0;
    switch (format_.rule) {
      case ScaleRule::floor:
        exponent = exponent_of(bits) - element_exponent_;
        break;
      case ScaleRule::ceil:
        exponent = exponent_of(bits + fraction) - element_exponent_;
        break;
      case ScaleRule::even:
        exponent = exponent_of(bits + (1ULL << (51 - fraction_bits_))) - element_exponent_;
        break;
      case ScaleRule::rceil:
      case ScaleRule::nearest:
        exponent = exponent_of(bits) - exponent_of(largest_bits_) + ((bits & fraction) > (largest_bits_ & fraction));
        break;
    }
    if (std::isinf(amax)) exponent = 128 - element_exponent_;
    return static_cast<float>(std::ldexp(1.0, std::clamp(exponent, -127, 127)));
  }

  // The number of the scale's format that is nearest to one above 0, ties to even, as NumberFormat::round() has it.
  // That function takes longer than the block's numbers.
  double nearest(double x) const {
    const auto& format = format_.scale;
    if (!format.subnormals || !(x < most_)) return format.round(x);
    const int exponent = std::max(exponent_of(std::bit_cast<std::uint64_t>(x)), 1 - format.bias);
    const double step = std::bit_cast<double>(static_cast<std::uint64_t>(exponent - format.mantissa + 1023) << 52);
    return std::nearbyint(x / step) * step;
  }

  const TensorFormat& format_;
  double largest_, of_tensor_, most_ = 1;
  std::uint64_t largest_bits_;
  int element_exponent_, fraction_bits_;
  bool is_power_;
  float tensor_scale_ = 1;
};

// The least exponent of codes, which hardware does not normalise, times a scale.
std::int16_t least_exponent(const NumberFormat& format, float scale) {
  int least = 1 - format.bias;
  if (format.kind == NumberFormat::Kind::posit) least = -2000;
  if (format.kind == NumberFormat::Kind::fixed) least = format.largest_exponent();
  return static_cast<std::int16_t>(least + (std::isfinite(scale) && scale > 0 ? std::ilogb(scale) : 0));
}

// The rounding of one tensor. Formats that the kernel does not have are rounded number by number.
class Rounder {
 public:
  Rounder(const NumberFormat& format, const Draw& draw)
      : format_(format),
        draw_(draw),
        is_in_kernel_(is_known(format)),
        rule_(is_in_kernel_ ? format : number_format("e4m3")),
        draws_{CountedNoise(draw.seed, 0), draw.bits} {
    draws_.noise.set_step(0);
  }

  // The numbers of the element, without the scale.
  void elements(const float* x, const float* scale, float* y, std::int64_t count, std::int64_t place) const {
    for (std::int64_t i = 0; i < count; ++i) y[i] = x[i] / scale[i];
    row(y, nullptr, y, count, place);
  }

  // For a matrix unit: y[i] without the part of the scale that stays outside, and the least exponent of its code.
  void row(const float* x, const float* scale, const float* in_unit, float* y, std::int16_t* least, std::int64_t count,
           std::int64_t place) const {
    elements(x, scale, y, count, place);
    for (std::int64_t i = 0; i < count; ++i) {
      y[i] *= in_unit[i];
      least[i] = least_exponent(format_, in_unit[i]);
    }
  }

  void row(const float* x, const float* scale, float* y, std::int64_t count, std::int64_t place) const {
    if (is_in_kernel_) {
      return best_kernels<FormatKernels>()->round_to_format(rule_, draw_.rounding, draws_, x, scale, y, count,
                                                            static_cast<std::uint32_t>(place));
    }
    for (std::int64_t i = 0; i < count; ++i) {
      const float s = scale == nullptr ? 1.0F : scale[i];
      const double draw = draw_.rounding == Rounding::stochastic ? drawn(place + i) : 0;
      y[i] = static_cast<float>(format_.round(x[i] / s, draw_.rounding, draw)) * s;
    }
  }

 private:
  static bool is_known(const NumberFormat& format) {
    if (format.kind == NumberFormat::Kind::floating) return format.mantissa > 0;
    return format.kind == NumberFormat::Kind::fixed;
  }
  // The kernel's rule with n bits: a step's fraction of at least 1 - (2 r + 1) / 2^(n + 1) is rounded up.
  // format_.round() asks for more than the result, so it is the number below.
  double drawn(std::int64_t place) const {
    const auto random = draws_.noise(static_cast<std::uint32_t>(place)) >> (32 - draws_.bits);
    return std::nextafter(1 - std::ldexp(2.0 * random + 1, -draws_.bits - 1), 0.0);
  }

  NumberFormat format_;
  Draw draw_;
  bool is_in_kernel_;
  FormatRule rule_;
  FormatDraws draws_;
};

// `scale`: of all numbers, or nullptr.
void round_flat(const Rounder& rounder, const float* x, const float* scale, float* y, std::int64_t count) {
  std::vector<float> scales;
  if (scale != nullptr) scales.assign(static_cast<std::size_t>(std::min(count, elements_a_task)), *scale);
  const auto tasks = static_cast<std::size_t>((count + elements_a_task - 1) / elements_a_task);
  for_each_chunk(tasks, /*chunks_a_thread=*/2, [&](std::size_t task) {
    const auto first = static_cast<std::int64_t>(task) * elements_a_task;
    rounder.row(x + first, scale == nullptr ? nullptr : scales.data(), y + first,
                std::min(elements_a_task, count - first), first);
  });
}

struct Matrices {
  const float* x;
  float* y;
  std::int16_t* least;  // nullptr, or y is for a matrix unit
  float* outside;       // nullptr, or gets the scales of the blocks, which y is without
  float* inner;         // nullptr, or gets the part of the scales that y has
  bool is_scaled;       // false: y has the numbers of the element, without scales
  std::int64_t count, rows, columns;
};

// Each task rounds bands of as many rows as a block has. Blocks across the columns share their scale in `scale`.
void round_bands(const Rounder& rounder, const Scales& scales, const Matrices& of, std::int64_t height,
                 std::int64_t width) {
  const auto bands = (of.rows + height - 1) / height;
  const auto bands_a_task = std::max<std::int64_t>(1, elements_a_task / std::max<std::int64_t>(1, height * of.columns));
  const auto all = of.count * bands, tasks = (all + bands_a_task - 1) / bands_a_task;
  for_each_chunk(static_cast<std::size_t>(tasks), /*chunks_a_thread=*/2, [&](std::size_t task) {
    std::vector<float> scale(static_cast<std::size_t>(of.columns)), in_unit(scale);
    const auto first = static_cast<std::int64_t>(task) * bands_a_task;
    for (auto band = first; band < std::min(all, first + bands_a_task); ++band) {
      const auto matrix = band / bands, row = band % bands * height;
      const auto rows = std::min(height, of.rows - row), start = (matrix * of.rows + row) * of.columns;
      std::fill(scale.begin(), scale.end(), 0.0F);
      for (std::int64_t i = 0; i < rows; ++i) {
        best_kernels<FormatKernels>()->raise_to_magnitudes(of.x + start + i * of.columns, scale.data(), of.columns);
      }
      bool has_zero = false;
      for (std::int64_t from = 0; from < of.columns; from += width) {
        const auto begin = scale.begin() + from, end = scale.begin() + std::min(of.columns, from + width);
        // NaN counts as the largest, as its bits do.
        const float amax = *std::max_element(begin, end, [](float a, float b) {
          return std::bit_cast<std::int32_t>(a) < std::bit_cast<std::int32_t>(b);
        });
        const float one = scales(amax);
        has_zero = has_zero || one == 0;
        std::fill(begin, end, one);
        if (of.least != nullptr) std::fill_n(in_unit.begin() + from, end - begin, scales.in_unit(amax));
      }
      for (std::int64_t i = 0; i < rows; ++i) {
        const auto at = start + i * of.columns;
        if (of.outside != nullptr) std::copy(scale.begin(), scale.end(), of.outside + at);
        if (of.inner != nullptr) std::copy(in_unit.begin(), in_unit.end(), of.inner + at);
        if (!of.is_scaled) {
          rounder.elements(of.x + at, scale.data(), of.y + at, of.columns, at);
        } else if (of.least == nullptr) {
          rounder.row(of.x + at, scale.data(), of.y + at, of.columns, at);
        } else {
          rounder.row(of.x + at, scale.data(), in_unit.data(), of.y + at, of.least + at, of.columns, at);
        }
        if (!has_zero) continue;  // a scale that the scale's format rounds to zero
        for (std::int64_t column = 0; column < of.columns; ++column) {
          if (scale[static_cast<std::size_t>(column)] == 0) of.y[at + column] = 0;
        }
      }
    }
  });
}

float largest_magnitude(const at::Tensor& x) {
  return x.numel() == 0 ? 0.0F : float8_amax(x).item<float>();
}

void require(const at::Tensor& x, const TensorFormat& format, const Draw& draw) {
  if (!x.is_floating_point() || x.scalar_type() == torch::kFloat64) {
    throw Error(
        c10::str("numbers are rounded from float32, bfloat16 or float16, and this tensor is of ", x.scalar_type()));
  }
  if (draw.rounding == Rounding::stochastic && (draw.bits < 1 || draw.bits > 23)) {
    throw Error(c10::str("stochastic rounding takes 1 to 23 random bits, not ", draw.bits));
  }
  if (format.block != 0 && x.dim() < 2) {
    throw Error(c10::str("the scales of ", format.name, " need a matrix, and this tensor is of shape ", x.sizes()));
  }
}

}  // namespace

ScaleRule scale_rule_named(const std::string& word) {
  if (word == "floor") return ScaleRule::floor;
  if (word == "ceil") return ScaleRule::ceil;
  if (word == "even") return ScaleRule::even;
  if (word == "rceil") return ScaleRule::rceil;
  if (word == "nearest") return ScaleRule::nearest;
  throw Error("there is no scale rule \"" + word + "\"; there are floor, ceil, even, rceil and nearest",
              Error::Kind::configuration);
}

std::vector<std::string> block_formats() {
  std::vector<std::string> names;
  for (const auto& format : named_blocks()) names.push_back(format.name);
  return names;
}

TensorFormat tensor_format(const std::string& name) {
  for (const auto& format : named_blocks()) {
    if (format.name == name) return format;
  }
  auto all = block_formats();
  for (const auto& other : number_formats()) all.push_back(other);
  try {
    TensorFormat format;
    format.name = name;
    format.element = number_format(name);
    return format;
  } catch (const Error& error) {
    const auto near = nearest(name, all);
    if (near.empty() || std::string(error.what()).find("there is no") == std::string::npos) throw;
    throw Error(
        "there is no number format \"" + name + "\"; did you mean \"" + near + "\"? `vernier formats` lists them",
        Error::Kind::configuration);
  }
}

namespace {

at::Tensor turned(const at::Tensor& x) {
  return x.dim() == 2 ? x.t() : x;
}

UnitOperand to_device(const UnitOperand& x, at::Device device) {
  const auto to = [&](const at::Tensor& tensor) { return tensor.defined() ? tensor.to(device) : tensor; };
  return {to(x.numbers), to(x.least_exponents), to(x.scale), to(x.block_scales), to(x.inner_scales)};
}

enum class Result { values, for_unit, elements };

// The scale of all numbers, or none. One number is the least exponent of all.
UnitOperand of_tensor(const Rounder& rounder, const TensorFormat& format, const at::Tensor& x, float largest,
                      Result result) {
  auto y = at::empty_like(x);
  auto* const to = y.mutable_data_ptr<float>();
  UnitOperand operand{y, at::empty({}, at::kShort)};
  float in_unit = 1;
  if (format.block == 0) {
    round_flat(rounder, x.const_data_ptr<float>(), nullptr, to, x.numel());
  } else {
    const Scales scales(format, largest);
    const float scale = scales(largest);
    in_unit = scales.in_unit(largest);
    at::div_out(y, x, at::scalar_tensor(scale));
    round_flat(rounder, to, nullptr, to, x.numel());
    if (in_unit != 1 && result == Result::for_unit) y.mul_(in_unit);
    operand.scale = at::scalar_tensor(scales.outside());
  }
  *operand.least_exponents.mutable_data_ptr<std::int16_t>() = least_exponent(format.element, in_unit);
  return operand;
}

// round_to, unit_operand and element_numbers, of which the first and the last take the numbers alone.
UnitOperand rounded(const at::Tensor& given, const TensorFormat& format, ScaleBlock block, const Draw& draw,
                    Result result) {
  const torch::NoGradGuard no_grad;
  const bool is_for_unit = result == Result::for_unit;
  require(given, format, draw);
  if (!given.is_cpu()) return to_device(rounded(given.cpu(), format, block, draw, result), given.device());
  // The copy of a transposed matrix would be dearer than the other block.
  const bool is_turned = given.dim() == 2 && !given.is_contiguous() && given.t().is_contiguous();
  if (is_turned && draw.rounding != Rounding::stochastic) {
    const auto turn = rounded(given.t(), format, {block.columns, block.rows}, draw, result);
    const auto back = [](const at::Tensor& tensor) { return tensor.defined() ? turned(tensor) : tensor; };
    return {turned(turn.numbers), back(turn.least_exponents), turn.scale, back(turn.block_scales),
            back(turn.inner_scales)};
  }
  const auto x = given.to(torch::kFloat32).contiguous();
  const bool is_of_all = block == per_tensor || format.block < 0;
  const Rounder rounder(format.element, draw);
  const bool has_largest = format.block != 0 && (is_of_all || format.tensor_scale);
  const float largest = format.amax > 0 ? format.amax : has_largest ? largest_magnitude(x) : 0;
  if (result != Result::values && (format.block == 0 || is_of_all || x.numel() == 0)) {
    return of_tensor(rounder, format, x, largest, result);
  }
  auto y = at::empty_like(x);
  if (x.numel() == 0) return {y};
  const auto* const from = x.const_data_ptr<float>();
  auto* const to = y.mutable_data_ptr<float>();
  const Scales scales(format, largest);
  if (format.block == 0 || is_of_all) {
    const float scale = format.block == 0 ? 1 : scales(largest);
    round_flat(rounder, from, format.block == 0 ? nullptr : &scale, to, x.numel());
    return {y};
  }
  UnitOperand operand{y};
  std::int16_t* least = nullptr;
  float *outside = nullptr, *inner = nullptr;
  if (is_for_unit) {
    operand.least_exponents = at::empty(x.sizes(), at::kShort);
    least = operand.least_exponents.mutable_data_ptr<std::int16_t>();
    if (format.has_block_scale) {
      operand.scale = at::scalar_tensor(scales.outside());
      operand.inner_scales = at::empty_like(x);
      inner = operand.inner_scales.mutable_data_ptr<float>();
    } else {
      operand.block_scales = at::empty_like(x);
      outside = operand.block_scales.mutable_data_ptr<float>();
    }
  }
  const Matrices matrices{
      from,       to,        least, outside, inner, result != Result::elements, x.numel() / (x.size(-2) * x.size(-1)),
      x.size(-2), x.size(-1)};
  round_bands(rounder, scales, matrices, block.rows == 0 ? matrices.rows : block.rows,
              block.columns == 0 ? matrices.columns : block.columns);
  return operand;
}

}  // namespace

torch::Tensor round_to(const torch::Tensor& x, const TensorFormat& format, ScaleBlock block, const Draw& draw) {
  return rounded(x, format, block, draw, Result::values).numbers;
}

torch::Tensor element_numbers(const torch::Tensor& x, const TensorFormat& format, ScaleBlock block, const Draw& draw) {
  return rounded(x, format, block, draw, Result::elements).numbers;
}

UnitOperand unit_operand(const torch::Tensor& x, const TensorFormat& format, ScaleBlock block, const Draw& draw) {
  return rounded(x, format, block, draw, Result::for_unit);
}

}  // namespace vernier
