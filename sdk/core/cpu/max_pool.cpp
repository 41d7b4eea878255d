#include <ATen/core/Tensor.h>
#include <ATen/native/Pool.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/max_pool2d_with_indices_cpu_dispatch.h>

#include <limits>
#include <optional>
#include <tuple>
#include <utility>

#include "base/kernels.h"
#include "cpu/kernels/pool_kernel.h"
#include "cpu/tasks.h"
#include "operators.h"
#include "rows.h"

namespace vernier {

namespace {

// Side `i` of the windows over x; nothing where LibTorch refuses the window or it is dilated.
std::optional<PoolSide> side_of(std::size_t i, std::int64_t size, at::IntArrayRef kernel, at::IntArrayRef stride,
                                at::IntArrayRef padding, at::IntArrayRef dilation, bool ceil_mode) {
  const auto number = [i](at::IntArrayRef all) { return all.size() == 1 ? all[0] : all[i]; };
  const auto is_known = [](at::IntArrayRef all) { return all.size() == 1 || all.size() == 2; };
  if (!is_known(kernel) || !is_known(padding) || !is_known(dilation)) return std::nullopt;
  if (!stride.empty() && !is_known(stride)) return std::nullopt;
  const auto width = number(kernel), step = stride.empty() ? width : number(stride), border = number(padding);
  if (width < 1 || step < 1 || border < 0 || border > width / 2 || number(dilation) != 1) return std::nullopt;
  const auto most = at::native::pooling_output_shape<std::int64_t>(size, width, border, step, 1, ceil_mode);
  if (most < 1) return std::nullopt;
  return PoolSide{size, width, step, border, most};
}

std::tuple<at::Tensor, at::Tensor> max_pool2d_with_indices(const at::Tensor& x, at::IntArrayRef kernel,
                                                           at::IntArrayRef stride, at::IntArrayRef padding,
                                                           at::IntArrayRef dilation, bool ceil_mode) {
  const auto side = [&](std::size_t i) {
    return side_of(i, x.size(static_cast<std::int64_t>(i) - 2), kernel, stride, padding, dilation, ceil_mode);
  };
  const auto* const pool = best_kernels<PoolKernels>();
  const bool is_taken = may_compute_rows() && pool != nullptr && is_plain(x) && (x.dim() == 3 || x.dim() == 4) &&
                        x.suggest_memory_format() == at::MemoryFormat::Contiguous &&
                        x.size(-1) * x.size(-2) <= std::numeric_limits<std::int32_t>::max();
  const auto height = is_taken ? side(0) : std::nullopt, width = is_taken ? side(1) : std::nullopt;
  if (!height || !width) {
    return at::cpu::max_pool2d_with_indices(x, kernel, stride, padding, dilation, ceil_mode);
  }
  auto sizes = x.sizes().vec();
  sizes[sizes.size() - 2] = height->most, sizes.back() = width->most;
  const auto y = at::empty(sizes, x.options()), places = at::empty(sizes, x.options().dtype(at::kLong));
  const auto pixels = height->size * width->size, windows = height->most * width->most;
  with_row_kernels(x.scalar_type(), [&]<class Element>(const RowKernels<Element>& kernels, Element) {
    const auto* from = x.const_data_ptr<Element>();
    auto* const to = y.template mutable_data_ptr<Element>();
    auto* const indices = places.template mutable_data_ptr<std::int64_t>();
    const auto bytes = (pixels + windows) * static_cast<std::int64_t>(sizeof(float));
    const OneThread one(x.numel() < 32768);
    in_tasks(x.numel() / pixels, bytes, [&](std::int64_t image, std::uintptr_t memory) {
      if constexpr (std::is_same_v<Element, float>) {
        pool->max_pool(*height, *width, from + image * pixels, to + image * windows, indices + image * windows);
      } else {
        auto* const numbers = reinterpret_cast<float*>(memory);
        kernels.to_floats(pixels, from + image * pixels, numbers);
        pool->max_pool(*height, *width, numbers, numbers + pixels, indices + image * windows);
        kernels.from_floats(windows, numbers + pixels, to + image * windows);
      }
    });
  });
  return {y, places};
}

}  // namespace

void register_max_pool(torch::Library& library) {
  library.impl("max_pool2d_with_indices", &max_pool2d_with_indices);
}

}  // namespace vernier
