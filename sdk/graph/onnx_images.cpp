// Images of any size, resized as transforms.cpp does: LibTorch's _upsample_bilinear2d_aa of uint8, to the bit. Resize
// of ONNX gives other pixels at the edges.
#include <ATen/ops/arange.h>
#include <ATen/ops/pow.h>

#include <algorithm>
#include <numeric>

#include "onnx_rules.h"

namespace vernier::graph {

namespace {

// The weights of an axis: whole numbers, float64 [size, pixels], in units of 1 / unit.
struct Weights {
  Name rows, unit;
};

// An axis of `pixels` that becomes `length`: int64 [1]. A pixel of the new axis reaches so many of the old one,
// float64.
struct Axis {
  Name pixels, length, scale, reach;
};

class Resizer {
 public:
  Resizer(OnnxGraph& onnx, std::int64_t size) : onnx_(onnx), size_(size) {}

  // pixels, shorter: int64 [1], of the axis and of the image's shorter side. The middle rows are those to keep, and no
  // matrix of all rows and pixels is made.
  Weights weights_of(const Name& pixels, const Name& shorter) {
    const auto length = op("Div", {op("Mul", {pixels, onnx_.ints({size_})}), shorter});
    const auto scale = op("Div", {wide(pixels), wide(length)}), reach = op("Max", {scale, real(1)});
    const Axis axis = {pixels, length, scale, reach};
    const auto window = op("Add", {op("Mul", {op("Ceil", {reach}), real(2)}), real(1)});
    const auto unit = unit_of(weights(axis, range(length), range(onnx_.cast(window, torch::kInt64)), /*is_near=*/true));
    const auto spare = wide(op("Sub", {length, onnx_.ints({size_})}));
    const auto kept = op("Add", {range(onnx_.ints({size_})), op("Round", {op("Mul", {spare, real(0.5)})})});
    return {whole(op("Mul", {weights(axis, kept, range(pixels), /*is_near=*/false), unit})), unit};
  }

  // The pixels of a sum: rounded, from 0 to 255.
  Name rounded(const Name& sum, const Name& unit) {
    const auto half = op("Mul", {unit, real(0.5)});
    return op("Clip", {op("Floor", {op("Div", {op("Add", {sum, half}), unit})}), real(0), real(255)});
  }

 private:
  Name op(const char* type, const Names& inputs) { return onnx_.add(type, inputs); }
  Name real(double number) { return onnx_.number(number, torch::kFloat64); }
  Name wide(const Name& name) { return onnx_.cast(name, torch::kFloat64); }
  Name whole(const Name& name) { return op("Floor", {op("Add", {name, real(0.5)})}); }
  Name range(const Name& count) {
    const auto number = [&](double of) { return onnx_.number(of, torch::kInt64); };
    return wide(op("Range", {number(0), op("Squeeze", {count}), number(1)}));
  }

  // Weights [to, from] that are 1 in sum. is_near: `from` counts from the first pixel that has a weight.
  Name weights(const Axis& axis, const Name& to, const Name& from, bool is_near) {
    const auto centre = op("Mul", {op("Add", {op("Unsqueeze", {to, onnx_.ints({1})}), real(0.5)}), axis.scale});
    const auto first = op("Max", {whole(op("Sub", {centre, axis.reach})), real(0)});
    const auto last = op("Min", {whole(op("Add", {centre, axis.reach})), wide(axis.pixels)});
    const auto place = is_near ? from : op("Sub", {from, first});
    const auto offset = op("Add", {place, op("Sub", {first, centre})});
    const auto distance = op("Mul", {op("Add", {offset, real(0.5)}), op("Reciprocal", {axis.reach})});
    const auto triangle = op("Max", {op("Sub", {real(1), op("Abs", {distance})}), real(0)});
    const auto has_weight =
        op("And", {op("GreaterOrEqual", {place, real(0)}), op("Less", {place, op("Sub", {last, first})})});
    const auto all = op("Where", {has_weight, triangle, real(0)});
    return op("Div", {all, op("ReduceSum", {all, onnx_.ints({1})})});
  }

  // LibTorch takes as many bits as keep the largest weight below 2^15, at most 22.
  Name unit_of(const Name& weights) {
    const auto most = onnx_.add("ReduceMax", {weights}, {{"keepdims", std::int64_t{0}}});
    const auto units = onnx_.tensor(at::pow(2.0, at::arange(1, 23, torch::kFloat64)));
    const auto fits = op("Less", {whole(op("Mul", {most, units})), real(1 << 15)});
    const auto bits = onnx_.add("ReduceSum", {wide(fits)}, {{"keepdims", std::int64_t{0}}});
    return op("Pow", {real(2), bits});
  }

  OnnxGraph& onnx_;
  std::int64_t size_;
};

}  // namespace

Name prepared_images(OnnxGraph& onnx, const Name& images, std::size_t dimensions, std::int64_t size) {
  const auto axes = static_cast<std::int64_t>(dimensions);
  std::vector<std::int64_t> order(dimensions);
  std::iota(order.begin(), order.end(), 0);
  std::rotate(order.end() - 3, order.end() - 1, order.end());
  const auto planes = onnx.add("Transpose", {images}, {{"perm", order}});
  if (size == 0) return planes;
  const auto pixels_of = [&](std::int64_t axis) {
    return onnx.add("Shape", {planes}, {{"start", axis}, {"end", axis + 1}});
  };
  const auto height = pixels_of(axes - 2), width = pixels_of(axes - 1), shorter = onnx.add("Min", {height, width});
  Resizer resizer(onnx, size);
  const auto across = resizer.weights_of(width, shorter), down = resizer.weights_of(height, shorter);
  const auto columns = onnx.add("MatMul", {onnx.cast(planes, torch::kFloat64), onnx.add("Transpose", {across.rows})});
  const auto rows = onnx.add("MatMul", {down.rows, resizer.rounded(columns, across.unit)});
  return onnx.cast(resizer.rounded(rows, down.unit), torch::kUInt8);
}

}  // namespace vernier::graph
