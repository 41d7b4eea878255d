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

class Resizer {
 public:
  Resizer(OnnxGraph& onnx, std::int64_t size) : onnx_(onnx), size_(size) {}

  // pixels, shorter: int64 [1], of the axis and of the image's shorter side.
  Weights weights_of(const Name& pixels, const Name& shorter) {
    const auto length = op("Div", {op("Mul", {pixels, onnx_.ints({size_})}), shorter});
    const auto scale = op("Div", {wide(pixels), wide(length)}), reach = op("Max", {scale, real(1)});
    const auto from = range(pixels);  // [pixels], and the others [length, 1]
    const auto to = op("Unsqueeze", {range(length), onnx_.ints({1})});
    const auto centre = op("Mul", {op("Add", {to, real(0.5)}), scale});
    const auto first = op("Max", {whole(op("Sub", {centre, reach})), real(0)});
    const auto last = op("Min", {whole(op("Add", {centre, reach})), wide(pixels)});
    const auto offset = op("Add", {op("Sub", {from, first}), op("Sub", {first, centre})});
    const auto distance = op("Mul", {op("Add", {offset, real(0.5)}), op("Reciprocal", {reach})});
    const auto triangle = op("Max", {op("Sub", {real(1), op("Abs", {distance})}), real(0)});
    const auto is_near = op("And", {op("GreaterOrEqual", {from, first}), op("Less", {from, last})});
    const auto weights = op("Where", {is_near, triangle, real(0)});
    return in_whole_numbers(op("Div", {weights, op("ReduceSum", {weights, onnx_.ints({1})})}), length);
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

  // LibTorch takes as many bits as keep the largest weight below 2^15, at most 22. The middle rows are those to keep.
  Weights in_whole_numbers(const Name& weights, const Name& length) {
    const auto most = onnx_.add("ReduceMax", {weights}, {{"keepdims", std::int64_t{0}}});
    const auto units = onnx_.tensor(at::pow(2.0, at::arange(1, 23, torch::kFloat64)));
    const auto fits = op("Less", {whole(op("Mul", {most, units})), real(1 << 15)});
    const auto bits = onnx_.add("ReduceSum", {wide(fits)}, {{"keepdims", std::int64_t{0}}});
    const auto unit = op("Pow", {real(2), bits});
    const auto spare = wide(op("Sub", {length, onnx_.ints({size_})}));
    const auto begin = onnx_.cast(op("Round", {op("Mul", {spare, real(0.5)})}), torch::kInt64);
    const auto end = op("Add", {begin, onnx_.ints({size_})});
    return {op("Slice", {whole(op("Mul", {weights, unit})), begin, end, onnx_.ints({0})}), unit};
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
