#include "gpu_float8.h"

#include <ATen/ATen.h>
#include <c10/core/DeviceGuard.h>
#include <torch/types.h>

namespace vernier {

namespace {

std::uint8_t* bytes_of(const torch::Tensor& values) {
  return values.defined() ? static_cast<std::uint8_t*>(values.data_ptr()) : nullptr;
}

gpu::Float8Cast cast_of(const torch::Tensor& x) {
  gpu::Float8Cast cast{};
  cast.from = x.const_data_ptr();
  cast.kind = kind_of(x.scalar_type());
  cast.columns = x.dim() == 0 ? 1 : x.size(-1);
  cast.rows = x.numel() / cast.columns;
  return cast;
}

void launch(const gpu::Library& library, const torch::Tensor& x, const gpu::Float8Cast& cast) {
  const c10::DeviceGuard guard(x.device());
  require_launched(library.cast_to_float8(cast, stream_of(x.device())), "cast_to_float8");
}

void write_to(gpu::Float8Cast& cast, const CastTwice& to) {
  cast.is_e5m2 = to.values.scalar_type() == torch::kFloat8_e5m2;
  cast.values = bytes_of(to.values);
  cast.transposed = bytes_of(to.transposed);
}

void cast(const gpu::Library& library, const torch::Tensor& x, const torch::Tensor& scale, const CastTwice& to,
          const torch::Tensor& largest) {
  auto all = cast_of(x);
  all.scale = scale.const_data_ptr<float>();
  all.largest = largest.defined() ? largest.data_ptr<float>() : nullptr;
  write_to(all, to);
  launch(library, x, all);
}

}  // namespace

bool can_cast_on_gpu(const torch::Tensor& x) {
  const auto dtype = x.scalar_type();
  return x.is_contiguous() && x.numel() != 0 && !x.is_neg() &&
         (dtype == torch::kFloat32 || dtype == torch::kBFloat16 || dtype == torch::kHalf);
}

torch::Tensor cast_on_gpu(const gpu::Library& library, const torch::Tensor& x, const torch::Tensor& scale,
                          torch::ScalarType format, const torch::Tensor& largest) {
  const CastTwice to{.values = at::empty(x.sizes(), x.options().dtype(format))};
  cast(library, x, scale, to, largest);
  return to.values;
}

CastTwice cast_twice_on_gpu(const gpu::Library& library, const torch::Tensor& x, const torch::Tensor& scale,
                            torch::ScalarType format, const torch::Tensor& largest) {
  const auto options = x.options().dtype(format);
  const CastTwice to{.values = at::empty(x.sizes(), options), .transposed = at::empty({x.size(1), x.size(0)}, options)};
  cast(library, x, scale, to, largest);
  return to;
}

torch::Tensor amax_on_gpu(const gpu::Library& library, const torch::Tensor& x) {
  const auto largest = at::zeros({}, x.options().dtype(torch::kFloat32));
  auto cast = cast_of(x);
  cast.largest = largest.data_ptr<float>();
  launch(library, x, cast);
  return largest;
}

CastTwice cast_by_amax_on_gpu(const gpu::Library& library, const torch::Tensor& x, torch::ScalarType format,
                              double highest, bool power_of_two, bool twice) {
  const auto largest = amax_on_gpu(library, x), scales = at::empty({2}, largest.options());
  const auto options = x.options().dtype(format);
  CastTwice to{at::empty(x.sizes(), options), {}, scales.select(0, 1), scales.select(0, 0)};
  if (twice) to.transposed = at::empty({x.size(1), x.size(0)}, options);
  auto cast = cast_of(x);
  cast.amax = largest.const_data_ptr<float>();
  cast.highest = static_cast<float>(highest);
  cast.power_of_two = power_of_two;
  cast.scales = scales.data_ptr<float>();
  write_to(cast, to);
  launch(library, x, cast);
  return to;
}

torch::Tensor contiguous_on_gpu(const gpu::Library& library, const torch::Tensor& values) {
  const c10::DeviceGuard guard(values.device());
  auto copy = at::empty(values.sizes(), values.options());
  const auto trouble =
      library.transpose_bytes(static_cast<const std::uint8_t*>(values.const_data_ptr()), values.size(1), values.size(0),
                              bytes_of(copy), stream_of(values.device()));
  require_launched(trouble, "transpose_bytes");
  return copy;
}

bool casts_are_right(const gpu::Library& library, const c10::Device& device) {
  const auto host = (at::sin(at::arange(70 * 130, torch::kFloat32) * 1.7) * 300).view({70, 130});
  const auto scale = at::full({}, 3.0F, torch::kFloat32);
  const auto right = (host * scale).clamp(-448, 448).to(torch::kFloat8_e4m3fn).view(torch::kByte);
  const auto x = host.to(device), largest = at::zeros({}, x.options());
  const auto ours = cast_twice_on_gpu(library, x, scale.to(device), torch::kFloat8_e4m3fn, largest);
  return at::equal(ours.values.view(torch::kByte).cpu(), right) && at::equal(largest.cpu(), host.abs().amax()) &&
         at::equal(ours.transposed.view(torch::kByte).cpu(), right.t()) &&
         at::equal(contiguous_on_gpu(library, ours.transposed.t()).view(torch::kByte).cpu(), right);
}

}  // namespace vernier
