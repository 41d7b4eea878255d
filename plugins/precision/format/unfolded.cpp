#include "unfolded.h"

#include <ATen/ATen.h>

#include <algorithm>

namespace formats {

using torch::Tensor;
using vernier::emulated_matmul;
using vernier::MatrixUnit;
using vernier::UnitOperand;

namespace {

using Sizes = std::vector<std::int64_t>;

// The sizes behind the first two dimensions.
Sizes positions_of(at::IntArrayRef sizes) {
  return sizes.slice(2).vec();
}

std::int64_t product_of(const Sizes& sizes) {
  return c10::multiply_integers(sizes);
}

// Lists one behind the other.
Sizes joined(std::initializer_list<Sizes> lists) {
  Sizes all;
  for (const auto& list : lists) all.insert(all.end(), list.begin(), list.end());
  return all;
}

// The order of dimensions as ranges of them: {{0, 2}, {5, 7}} is 0, 1, 5, 6.
Sizes order_of(std::initializer_list<std::pair<std::int64_t, std::int64_t>> ranges) {
  Sizes order;
  for (const auto& [first, end] : ranges) {
    for (auto i = first; i < end; ++i) order.push_back(i);
  }
  return order;
}

struct Windows {
  Sizes kernel, stride, dilation;
  Sizes before, after;  // zeros on both sides of each dimension; below 0: numbers are cut off
  std::int64_t groups;
};

// Returns [groups, N * windows, kernel * C / groups] of x [N, C, ...].
Tensor patches(const Tensor& given, const Windows& of) {
  const auto count = static_cast<std::int64_t>(of.kernel.size());
  Sizes padding;
  for (auto i = of.kernel.size(); i-- > 0;) padding.insert(padding.end(), {of.before[i], of.after[i]});
  const auto x = at::constant_pad_nd(given, padding).contiguous();
  const auto channels = x.size(1) / of.groups;
  Sizes windows, strides = {x.stride(0), channels * x.stride(1), x.stride(1)}, steps;
  for (std::size_t i = 0; i < of.kernel.size(); ++i) {
    const auto dimension = static_cast<std::int64_t>(i) + 2;
    windows.push_back((x.size(dimension) - of.dilation[i] * (of.kernel[i] - 1) - 1) / of.stride[i] + 1);
    strides.push_back(x.stride(dimension) * of.stride[i]);
    steps.push_back(x.stride(dimension) * of.dilation[i]);
  }
  const auto view =
      x.as_strided(joined({{x.size(0), of.groups, channels}, windows, of.kernel}), joined({strides, steps}));
  return view.permute(order_of({{1, 2}, {0, 1}, {3, 3 + 2 * count}, {2, 3}}))
      .reshape({of.groups, x.size(0) * product_of(windows), product_of(of.kernel) * channels});
}

// [groups, N * positions, channels] as [N, groups * channels, positions...].
Tensor folded(const Tensor& y, std::int64_t samples, const Sizes& positions) {
  const auto count = static_cast<std::int64_t>(positions.size());
  const auto channels = y.size(2);
  return y.reshape(joined({{y.size(0), samples}, positions, {channels}}))
      .permute(order_of({{1, 2}, {0, 1}, {2 + count, 3 + count}, {2, 2 + count}}))
      .reshape(joined({{samples, y.size(0) * channels}, positions}));
}

// Multiplies both. The summed dimension is [places, dimension of the blocks]; blocks_first: the reverse. If block
// scales are outside of the unit, each place is a product of its own, and float32 adds the products. Sum::block_scaled
// multiplies as the 8-bit unit here: its numbers contain their scales.
Tensor multiplied(const UnitOperand& a, const UnitOperand& b, const MatrixUnit& given, std::int64_t places,
                  bool blocks_first = false) {
  const auto unit = given.sum == MatrixUnit::Sum::block_scaled ? vernier::matrix_unit("b200", 8) : given;
  if (!a.block_scales.defined() && !b.block_scales.defined()) return emulated_matmul(a, b, unit);
  const auto all = a.numbers.size(-1);
  Tensor sum;
  for (std::int64_t place = 0; place < places; ++place) {
    const auto from = blocks_first ? place : place * (all / places), step = blocks_first ? places : 1;
    const auto part = [&](const UnitOperand& of, std::int64_t dimension) {
      return mapped(of, [&](const Tensor& x) {
        return x.slice(dimension, from, blocks_first ? all : from + all / places, step);
      });
    };
    const auto product = emulated_matmul(part(a, 2), part(b, 1), unit);
    sum = place == 0 ? product : sum.add_(product);
  }
  return sum;
}

}  // namespace

Tensor unfolded_convolution(const UnitOperand& x, const UnitOperand& w, const Products::Convolution& shape,
                            const MatrixUnit& unit) {
  const auto sizes = w.numbers.sizes();
  const Windows windows{positions_of(sizes), shape.stride, shape.dilation, shape.padding, shape.padding, shape.groups};
  const auto count = static_cast<std::int64_t>(windows.kernel.size());
  const auto a = mapped(x, [&](const Tensor& tensor) { return patches(tensor, windows); });
  const auto b = mapped(w, [&](const Tensor& tensor) {
    return tensor.reshape(joined({{shape.groups, sizes[0] / shape.groups, sizes[1]}, windows.kernel}))
        .permute(order_of({{0, 1}, {3, 3 + count}, {2, 3}, {1, 2}}))
        .reshape({shape.groups, -1, sizes[0] / shape.groups});
  });
  Sizes positions;
  for (std::size_t i = 0; i < windows.kernel.size(); ++i) {
    const auto length = x.numbers.size(static_cast<std::int64_t>(i) + 2) + 2 * shape.padding[i];
    positions.push_back((length - shape.dilation[i] * (windows.kernel[i] - 1) - 1) / shape.stride[i] + 1);
  }
  return folded(multiplied(a, b, unit, product_of(windows.kernel)), x.numbers.size(0), positions);
}

Tensor unfolded_input_gradient(const UnitOperand& g, const UnitOperand& w, at::IntArrayRef sizes,
                               const Products::Convolution& shape, const MatrixUnit& unit) {
  const auto of_w = w.numbers.sizes(), of_g = g.numbers.sizes();
  Windows windows{positions_of(of_w), Sizes(shape.stride.size(), 1), shape.dilation, {}, {}, shape.groups};
  const auto count = static_cast<std::int64_t>(windows.kernel.size());
  Sizes spread = {of_g[0], of_g[1]};
  for (std::size_t i = 0; i < windows.kernel.size(); ++i) {
    const auto reach = shape.dilation[i] * (windows.kernel[i] - 1);
    spread.push_back((of_g[i + 2] - 1) * shape.stride[i] + 1);
    windows.before.push_back(reach - shape.padding[i]);
    windows.after.push_back(sizes[i + 2] + reach - spread.back() - windows.before.back());
  }
  const auto a = mapped(g, [&](const Tensor& tensor) {
    auto whole = at::zeros(spread, tensor.options());
    auto places = whole;
    for (std::int64_t i = 0; i < count; ++i) {
      places = places.slice(i + 2, 0, c10::nullopt, shape.stride[static_cast<std::size_t>(i)]);
    }
    places.copy_(tensor);
    return patches(whole, windows);
  });
  const auto b = mapped(w, [&](const Tensor& tensor) {
    return tensor.flip(order_of({{2, 2 + count}}))
        .reshape(joined({{shape.groups, of_w[0] / shape.groups, of_w[1]}, windows.kernel}))
        .permute(order_of({{0, 1}, {3, 3 + count}, {1, 3}}))
        .reshape({shape.groups, -1, of_w[1]});
  });
  return folded(multiplied(a, b, unit, product_of(windows.kernel)), sizes[0], positions_of(sizes));
}

Tensor unfolded_weight_gradient(const UnitOperand& x, const UnitOperand& g, at::IntArrayRef sizes,
                                const Products::Convolution& shape, const MatrixUnit& unit) {
  const auto of_g = g.numbers.sizes();
  Windows windows{positions_of(sizes), shape.stride, shape.dilation, shape.padding, shape.padding, shape.groups};
  const auto count = static_cast<std::int64_t>(windows.kernel.size());
  const auto a = mapped(g, [&](const Tensor& tensor) {
    return tensor.reshape({of_g[0], shape.groups, of_g[1] / shape.groups, -1})
        .permute({1, 2, 0, 3})
        .reshape({shape.groups, of_g[1] / shape.groups, -1});
  });
  const auto b = mapped(x, [&](const Tensor& tensor) { return patches(tensor, windows); });
  return multiplied(a, b, unit, product_of(positions_of(of_g)), /*blocks_first=*/true)
      .reshape(joined({{sizes[0]}, windows.kernel, {sizes[1]}}))
      .permute(order_of({{0, 1}, {1 + count, 2 + count}, {1, 1 + count}}))
      .contiguous();
}

}  // namespace formats
