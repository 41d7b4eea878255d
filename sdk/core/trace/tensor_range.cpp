#include <ATen/ATen.h>
#include <ATen/Dispatch.h>
#include <ATen/autocast_mode.h>
#include <ATen/record_function.h>
#include <c10/core/impl/LocalDispatchKeySet.h>
#include <c10/util/StringUtil.h>
#include <torch/types.h>
#include <vernier/tensor_range.h>

#include <algorithm>
#include <cmath>
#include <cstdio>

namespace vernier {

namespace {

// Operations within this scope change nothing of the pass that is looked at, and are not recorded.
struct UnrecordedScope {
  at::DisableRecordFunctionGuard unrecorded;
  at::NoGradGuard no_grad;
  c10::impl::ExcludeDispatchKeyGuard keys{c10::DispatchKeySet(
      {c10::DispatchKey::TESTING_ONLY_GenericMode, c10::DispatchKey::AutocastCPU, c10::DispatchKey::AutocastCUDA})};
};

struct Sums {
  double amax = 0, squares = 0;
  std::int64_t zeros = 0, infs = 0, nans = 0, negative_infs = 0;
};

// Blocks without a branch where all is finite, as nearly all are.
template <class T>
Sums sums_of(const T* values, std::int64_t count) {
  constexpr std::int64_t block = 1024;
  Sums sums;
  float as_float[block];
  for (std::int64_t first = 0; first < count; first += block) {
    const auto length = std::min(block, count - first);
    float largest = 0, squares[8] = {};
    std::int32_t zeros = 0, odd = 0;
    for (std::int64_t i = 0; i < length; ++i) {
      const float value = std::abs(static_cast<float>(values[first + i]));
      as_float[i] = value;
      largest = value > largest ? value : largest;
      zeros += value == 0.0F;
      odd += !(value <= 3.4028235e38F);
    }
    if (odd == 0 && largest < 1e18F) {
      std::int64_t i = 0;
      for (; i + 8 <= length; i += 8) {
        for (int lane = 0; lane < 8; ++lane) squares[lane] += as_float[i + lane] * as_float[i + lane];
      }
      for (; i < length; ++i) squares[0] += as_float[i] * as_float[i];
      for (const float part : squares) sums.squares += part;
      sums.amax = std::max(sums.amax, static_cast<double>(largest));
    } else {
      for (std::int64_t i = 0; i < length; ++i) {
        const double value = static_cast<double>(values[first + i]);
        if (std::isnan(value)) {
          ++sums.nans;
        } else if (std::isinf(value)) {
          ++sums.infs;
          sums.negative_infs += value < 0;
        } else {
          sums.amax = std::max(sums.amax, std::abs(value));
          sums.squares += value * value;
        }
      }
    }
    sums.zeros += zeros;
  }
  return sums;
}

torch::Tensor measure_on_host(const torch::Tensor& tensor) {
  const auto values = tensor.contiguous();
  Sums sums;
  AT_DISPATCH_FLOATING_TYPES_AND2(at::kHalf, at::kBFloat16, values.scalar_type(), "range_of",
                                  [&] { sums = sums_of(values.const_data_ptr<scalar_t>(), values.numel()); });
  return torch::tensor(
      {static_cast<double>(values.numel()), sums.amax, sums.squares, static_cast<double>(sums.zeros),
       static_cast<double>(sums.infs), static_cast<double>(sums.nans), static_cast<double>(sums.negative_infs)},
      torch::kFloat64);
}

torch::Tensor measure_on_device(const torch::Tensor& tensor) {
  const auto values = tensor.to(torch::kFloat64);
  const auto finite = at::isfinite(values);
  const auto magnitudes = at::where(finite, values.abs(), at::zeros({}, values.options()));
  const auto count = [&](const torch::Tensor& which) { return which.sum(torch::kFloat64); };
  return at::stack({at::full({}, static_cast<double>(tensor.numel()), values.options()), magnitudes.amax(),
                    magnitudes.square().sum(), count(values == 0), count(at::isinf(values)), count(at::isnan(values)),
                    count(at::isneginf(values))});
}

}  // namespace

torch::Tensor measure_range(const torch::Tensor& tensor) {
  const UnrecordedScope unrecorded_scope;
  if (tensor.is_sparse()) return measure_range(tensor.detach()._values());  // the rest is zeros
  const bool is_empty = tensor.numel() == 0 || !tensor.is_floating_point() || tensor.layout() != torch::kStrided;
  if (is_empty) {
    auto none = torch::zeros({7}, torch::dtype(torch::kFloat64));
    none[0] = static_cast<double>(tensor.numel());
    return none.to(tensor.device());
  }
  auto values = tensor.detach();
  const bool is_8_bit = values.element_size() == 1;  // float8 knows no arithmetic
  if (is_8_bit) values = values.to(torch::kFloat32);
  return values.is_cpu() ? measure_on_host(values) : measure_on_device(values);
}

TensorRange range_from(const double* measured, torch::ScalarType dtype) {
  TensorRange range;
  range.dtype = dtype;
  range.elements = static_cast<std::int64_t>(measured[0]);
  range.amax = measured[1];
  range.zeros = static_cast<std::int64_t>(measured[3]);
  range.infs = static_cast<std::int64_t>(measured[4]);
  range.nans = static_cast<std::int64_t>(measured[5]);
  range.negative_infs = static_cast<std::int64_t>(measured[6]);
  const auto finite = range.elements - range.infs - range.nans;
  range.rms = finite > 0 ? std::sqrt(measured[2] / static_cast<double>(finite)) : 0;
  return range;
}

TensorRange range_of(const torch::Tensor& tensor) {
  const UnrecordedScope unrecorded_scope;
  const auto measured = measure_range(tensor).to(torch::kCPU);
  return range_from(measured.const_data_ptr<double>(), tensor.scalar_type());
}

std::string TensorRange::text() const {
  const auto number = [](double value) {
    char text[32];
    std::snprintf(text, sizeof text, "%.3g", value);
    return std::string(text);
  };
  const std::string what = c10::str(elements, " ", dtype);
  if (elements == 0 || !c10::isFloatingType(dtype)) return what;
  std::string text = "amax " + number(amax) + " rms " + number(rms);
  if (zeros > 0) text += ", " + number(100 * static_cast<double>(zeros) / static_cast<double>(elements)) + " % zeros";
  if (infs > 0) text += c10::str(", ", infs, " inf");
  if (nans > 0) text += c10::str(", ", nans, " nan");
  return text + " of " + what;
}

}  // namespace vernier
