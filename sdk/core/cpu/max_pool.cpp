#include <ATen/core/Tensor.h>
#include <ATen/native/Pool.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/max_pool2d_with_indices_backward_cpu_dispatch.h>
#include <ATen/ops/max_pool2d_with_indices_cpu_dispatch.h>

#include <atomic>
#include <limits>
#include <optional>
#include <tuple>
#include <type_traits>
#include <utility>
#include <vector>

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

// The windows over x, where the kernels take them.
struct Windows {
  PoolSide height, width;
  std::vector<std::int64_t> sizes;  // they are those of the result
  std::int64_t pixels = height.size * width.size, count = height.most * width.most;
};

template <class... Rest>
std::optional<Windows> windows_over(const at::Tensor& x, const Rest&... rest) {
  const bool is_taken = may_compute_rows() && best_kernels<PoolKernels>() != nullptr && is_plain(x) &&
                        (x.dim() == 3 || x.dim() == 4) && x.suggest_memory_format() == at::MemoryFormat::Contiguous &&
                        x.size(-1) * x.size(-2) <= std::numeric_limits<std::int32_t>::max();
  const auto height = is_taken ? side_of(0, x.size(-2), rest...) : std::nullopt;
  const auto width = is_taken ? side_of(1, x.size(-1), rest...) : std::nullopt;
  if (!height || !width) return std::nullopt;
  auto sizes = x.sizes().vec();
  sizes[sizes.size() - 2] = height->most, sizes.back() = width->most;
  return Windows{*height, *width, std::move(sizes)};
}

// For each image of x, calls body(kernels, Element{}, image, room for its pixels as floats, for its windows).
template <class Body>
void for_each_image(const at::Tensor& x, const Windows& windows, const Body& body) {
  const auto copied = x.scalar_type() == at::kFloat ? 0 : windows.pixels + windows.count;
  const auto bytes = copied * static_cast<std::int64_t>(sizeof(float));
  const OneThread one(x.numel() < 32768);
  with_row_kernels(x.scalar_type(), [&](const auto& kernels, auto element) {
    in_tasks(x.numel() / windows.pixels, bytes, [&](std::int64_t image, std::uintptr_t memory) {
      auto* const floats = reinterpret_cast<float*>(memory);
      body(kernels, element, image, floats, floats + windows.pixels);
    });
  });
}

std::tuple<at::Tensor, at::Tensor> max_pool2d_with_indices(const at::Tensor& x, at::IntArrayRef kernel,
                                                           at::IntArrayRef stride, at::IntArrayRef padding,
                                                           at::IntArrayRef dilation, bool ceil_mode) {
  const auto over = windows_over(x, kernel, stride, padding, dilation, ceil_mode);
  if (!over) return at::cpu::max_pool2d_with_indices(x, kernel, stride, padding, dilation, ceil_mode);
  const auto y = at::empty(over->sizes, x.options()), places = at::empty(over->sizes, x.options().dtype(at::kLong));
  const auto pool = best_kernels<PoolKernels>()->max_pool;
  for_each_image(x, *over, [&]<class E>(const auto& kernels, E, std::int64_t image, float* pixels, float* windows) {
    const auto* const from = x.const_data_ptr<E>() + image * over->pixels;
    auto* const to = y.template mutable_data_ptr<E>() + image * over->count;
    auto* const found = places.template mutable_data_ptr<std::int64_t>() + image * over->count;
    if constexpr (std::is_same_v<E, float>) return pool(over->height, over->width, from, to, found);
    kernels.to_floats(over->pixels, from, pixels);
    pool(over->height, over->width, pixels, windows, found);
    kernels.from_floats(over->count, windows, to);
  });
  return {y, places};
}

at::Tensor max_pool2d_with_indices_backward(const at::Tensor& dy, const at::Tensor& x, at::IntArrayRef kernel,
                                            at::IntArrayRef stride, at::IntArrayRef padding, at::IntArrayRef dilation,
                                            bool ceil_mode, const at::Tensor& places) {
  const auto over = windows_over(x, kernel, stride, padding, dilation, ceil_mode);
  std::atomic<bool> is_taken = over && is_pair(over->height) && is_pair(over->width) && over->width.most >= 8 &&
                               is_plain(dy) && dy.scalar_type() == x.scalar_type() && dy.sizes() == over->sizes &&
                               places.sizes() == over->sizes && places.is_contiguous() &&
                               places.scalar_type() == at::kLong;  // LibTorch's is as fast for short rows
  const auto dx = is_taken ? at::empty(x.sizes(), x.options()) : at::Tensor();
  const auto spread = is_taken ? best_kernels<PoolKernels>()->pairs_backward : nullptr;
  if (is_taken) {
    for_each_image(x, *over, [&]<class E>(const auto& kernels, E, std::int64_t image, float* pixels, float* windows) {
      const auto* const from = dy.const_data_ptr<E>() + image * over->count;
      const auto* const found = places.template const_data_ptr<std::int64_t>() + image * over->count;
      auto* const to = dx.template mutable_data_ptr<E>() + image * over->pixels;
      if constexpr (std::is_same_v<E, float>) {
        if (!spread(over->height, over->width, from, found, to)) is_taken = false;
      } else {
        kernels.to_floats(over->count, from, windows);
        if (!spread(over->height, over->width, windows, found, pixels)) is_taken = false;
        kernels.from_floats(over->pixels, pixels, to);
      }
    });
  }
  if (is_taken) return dx;  // else a place may not be in its window
  return at::cpu::max_pool2d_with_indices_backward(dy, x, kernel, stride, padding, dilation, ceil_mode, places);
}

}  // namespace

void register_max_pool(torch::Library& library) {
  library.impl("max_pool2d_with_indices", &max_pool2d_with_indices);
  library.impl("max_pool2d_with_indices_backward", &max_pool2d_with_indices_backward);
}

}  // namespace vernier
