// Rules of operators that write to places, sort, count, or take windows.
#include <ATen/ops/affine_grid_generator.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/eye.h>
#include <ATen/ops/minimum.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/result_type.h>
#include <ATen/ops/zeros.h>

#include <cmath>

#include "onnx_rules.h"

namespace vernier::graph {

namespace {

std::int64_t axis_of(Call& call) {
  return call.dimension("dim", call.value("self").sizes.size());
}

Name expanded(Call& call, const Name& name, const Sizes& sizes) {
  return call.onnx.add("Expand", {name, call.onnx.sizes(sizes)});
}

Name scattered(Call& call, const Names& inputs, std::int64_t axis, const std::string& reduction) {
  return call.onnx.add("ScatterElements", inputs, {{"axis", axis}, {"reduction", reduction}});
}

Name taken(Call& call, const Name& x, std::int64_t axis, const torch::Tensor& places) {
  return call.onnx.add("Gather", {x, call.onnx.tensor(places)}, {{"axis", axis}});
}

// places: a vector with the place along the axis of each slice of the updates.
Name with_slices(Call& call, const Name& data, std::int64_t axis, const Name& places, const Name& updates,
                 const Sizes& sizes, const std::string& reduction) {
  Sizes column(sizes.size(), Size{1});
  column.at(static_cast<std::size_t>(axis)) = sizes[static_cast<std::size_t>(axis)];
  const auto all = expanded(call, reshaped(call, places, column), sizes);
  return scattered(call, {data, all, updates}, axis, reduction);
}

// index_add, index_copy and index_fill.
template <Literal reduction>
void by_index(Call& call) {
  const auto dtype = call.dtype();
  const auto axis = axis_of(call);
  auto sizes = call.value("self").sizes;
  const auto& places = call.value("index").sizes;
  sizes.at(static_cast<std::size_t>(axis)) = places.empty() ? Size{1} : places[0];
  auto updates = expanded(call, call.name(call.has("source") ? "source" : "value", dtype), sizes);
  if (call.has("alpha")) updates = call.onnx.add("Mul", {updates, call.name("alpha", dtype)});
  call.set(with_slices(call, call.name("self", dtype), axis, call.name("index"), updates, sizes, reduction.chars));
}

// The data without their own numbers at the places: there they are neutral in a sum or product. In a maximum or minimum
// they are numbers that count anyway.
Name without_self(Call& call, Names inputs, std::int64_t axis, const std::string& reduction) {
  if (reduction == "add" || reduction == "mul") {
    const auto neutral = call.onnx.number(reduction == "mul" ? 1 : 0, call.dtype());
    inputs[2] = call.onnx.add("Expand", {neutral, call.onnx.add("Shape", {inputs[1]})});
  }
  return scattered(call, inputs, axis, "none");
}

// Numbers at places that a tensor has for each. An index may be smaller than what is written.
template <Literal given>
void scatter(Call& call) {
  static const std::map<std::string, std::string> known = {{"add", "add"},      {"sum", "add"},  {"mean", "add"},
                                                           {"multiply", "mul"}, {"prod", "mul"}, {"amax", "max"},
                                                           {"amin", "min"},     {"none", "none"}};
  const auto name = call.has("reduce") ? call.text("reduce") : std::string(given.chars);
  const auto& reduction = known.at(name);
  const auto dtype = call.dtype();
  const auto axis = axis_of(call);
  const auto& sizes = call.value("index").sizes;
  const auto updates = call.name(call.has("src") ? "src" : "value", dtype);
  const std::vector<std::int64_t> zeros(sizes.size());
  const bool is_one = !call.has("src") || sizes.empty();
  const auto fitting = is_one ? expanded(call, updates, sizes)
                              : call.onnx.add("Slice", {updates, call.onnx.ints(zeros), call.onnx.sizes(sizes)});
  const bool has_self = !call.has("include_self") || call.flag("include_self");
  Names inputs = {call.name("self", dtype), call.name("index"), fitting};
  if (!has_self) inputs[0] = without_self(call, inputs, axis, reduction);
  const auto result = scattered(call, inputs, axis, reduction);
  if (name != "mean") return call.set(result);
  if (!c10::isFloatingType(dtype)) call.refuse("it computes means of integers");
  const auto start = expanded(call, call.onnx.number(has_self ? 1 : 0, dtype), call.value("self").sizes);
  const auto ones = expanded(call, call.onnx.number(1, dtype), sizes);
  const auto count = scattered(call, {start, inputs[1], ones}, axis, "add");
  call.set(call.onnx.add("Div", {result, call.onnx.add("Max", {count, call.onnx.number(1, dtype)})}));
}

void slice_scatter(Call& call) {
  const auto axis = axis_of(call);
  const auto& sizes = call.value("src").sizes;
  const auto size = call.value("self").sizes.at(static_cast<std::size_t>(axis));
  const auto src = call.name("src", call.dtype());
  if (sizes == call.value("self").sizes) return call.set(src);
  if (size.is_per_sample) call.refuse("it writes to some samples; write to all");
  const auto start = call.has("start") ? call.integer("start") : 0;
  const auto step = call.integer("step");
  const auto count = sizes[static_cast<std::size_t>(axis)].number;
  const auto first = std::max<std::int64_t>(start < 0 ? start + size.number : start, 0);
  const auto places = call.onnx.tensor(at::arange(count) * step + first);
  call.set(with_slices(call, call.name("self"), axis, places, src, sizes, "none"));
}

void select_scatter(Call& call) {
  const auto axis = axis_of(call);
  auto sizes = call.value("self").sizes;
  sizes.at(static_cast<std::size_t>(axis)) = Size{1};
  const auto src = call.onnx.add("Unsqueeze", {call.name("src", call.dtype()), call.onnx.ints({axis})});
  call.set(with_slices(call, call.name("self"), axis, call.onnx.ints({call.integer("index")}), src, sizes, "none"));
}

// The diagonal of two dimensions, which `order` moves to the end. `places` counts in both as one.
struct Diagonal {
  std::vector<std::int64_t> order, back;
  Sizes moved, flat;
  torch::Tensor places;
};

Diagonal diagonal_of(Call& call, const Sizes& sizes) {
  Diagonal all;
  const auto one = call.dimension("dim1", sizes.size()), other = call.dimension("dim2", sizes.size());
  for (std::int64_t i = 0; i < std::ssize(sizes); ++i) {
    if (i != one && i != other) all.order.push_back(i);
  }
  all.order.push_back(one), all.order.push_back(other);
  all.back.resize(all.order.size());
  for (std::size_t i = 0; i < all.order.size(); ++i) {
    all.back[static_cast<std::size_t>(all.order[i])] = static_cast<std::int64_t>(i);
    all.moved.push_back(sizes[static_cast<std::size_t>(all.order[i])]);
  }
  const auto rows = all.moved.end()[-2], columns = all.moved.back();
  if (rows.is_per_sample || columns.is_per_sample) call.refuse("its sizes depend on the batch");
  all.flat.assign(all.moved.begin(), all.moved.end() - 2);
  all.flat.push_back({rows.number * columns.number});
  const auto matrix = at::arange(rows.number * columns.number).reshape({rows.number, columns.number});
  all.places = matrix.diagonal(call.integer("offset")).contiguous();
  return all;
}

void diagonal(Call& call) {
  const auto all = diagonal_of(call, call.value("self").sizes);
  const auto x = reshaped(call, transposed(call, call.name("self"), all.order), all.flat);
  call.set(taken(call, x, std::ssize(all.flat) - 1, all.places));
}

// diagonal_scatter, and diag_embed, which writes to zeros.
void write_diagonal(Call& call) {
  const auto dtype = call.dtype();
  const auto& sizes = call.result().sizes;
  const auto all = diagonal_of(call, sizes);
  const bool is_new = !call.has("src");
  const auto before = is_new ? expanded(call, call.onnx.number(0, dtype), sizes) : call.name("self", dtype);
  const auto flat = reshaped(call, transposed(call, before, all.order), all.flat);
  auto written = all.flat;
  written.back() = {all.places.numel()};
  const auto updates = call.name(is_new ? "self" : "src", dtype);
  const auto done =
      with_slices(call, flat, std::ssize(all.flat) - 1, call.onnx.tensor(all.places), updates, written, "none");
  call.set(transposed(call, reshaped(call, done, all.moved), all.back));
}

// Each number where the mask is true is the next one of the source.
void masked_scatter(Call& call) {
  const auto dtype = call.dtype();
  const auto mask = expanded(call, call.name("mask"), call.result().sizes);
  const auto all = call.onnx.ints({-1});
  const auto flat = call.onnx.cast(call.onnx.add("Reshape", {mask, all}), torch::kInt64);
  const auto count = call.onnx.add("CumSum", {flat, call.onnx.number(0, torch::kInt64)});
  const auto place = call.onnx.add("Max", {call.onnx.add("Sub", {count, call.onnx.ints({1})}), call.onnx.ints({0})});
  const auto next = call.onnx.add("Gather", {call.onnx.add("Reshape", {call.name("source", dtype), all}), place});
  call.set(chosen(call, mask, reshaped(call, next, call.result().sizes), call.name("self", dtype)));
}

// sort and topk. Equal numbers keep their order.
void sort(Call& call) {
  const auto axis = axis_of(call);
  const auto most =
      call.has("k") ? sizes_in(call, "k").at(0) : call.value("self").sizes.at(static_cast<std::size_t>(axis));
  const std::int64_t is_largest = call.flag(call.has("k") ? "largest" : "descending") ? 1 : 0;
  const bool is_bool = call.dtype() == torch::kBool;
  const auto x = call.name("self", is_bool ? torch::kInt32 : call.dtype());
  const auto both = call.onnx.add("TopK", {x, call.onnx.sizes({most})}, {{"axis", axis}, {"largest", is_largest}}, 2);
  call.set(is_bool ? call.onnx.cast(both[0], torch::kBool) : both[0]), call.set(both[1], 1);
}

// bucketize and searchsorted: how many edges are below each number. All are below NaN.
void buckets(Call& call) {
  if (call.has("sorter")) call.refuse("it has a sorter");
  const char* edges = call.has("boundaries") ? "boundaries" : "sorted_sequence";
  const bool is_right = call.flag("right") || (call.has("side") && call.text("side") == "right");
  auto dtype = call.value(edges).dtype();
  if (call.at("self").kind == Argument::Kind::value) {
    dtype = at::result_type(call.value(edges).tensor, call.value("self").tensor);
  }
  const auto x = call.onnx.add("Unsqueeze", {call.name("self", dtype), call.onnx.ints({-1})});
  auto all = call.name(edges, dtype);
  if (call.value(edges).sizes.size() > 1) all = call.onnx.add("Unsqueeze", {all, call.onnx.ints({-2})});
  const auto is_below = op(call, "Not", {op(call, is_right ? "Greater" : "GreaterOrEqual", {all, x})});
  const auto numbers = call.onnx.cast(is_below, torch::kInt64);
  const auto count = call.onnx.add("ReduceSum", {numbers, call.onnx.ints({-1})}, {{"keepdims", std::int64_t{0}}});
  call.set(call.onnx.cast(count, call.dtype()));
}

void one_hot(Call& call) {
  const auto classes = call.integer("num_classes");
  if (classes < 0) call.refuse("its classes depend on its input; give num_classes");
  const auto x = call.onnx.add("Unsqueeze", {call.name("self"), call.onnx.ints({-1})});
  const auto is_it = call.onnx.add("Equal", {x, call.onnx.tensor(at::arange(classes))});
  call.set(call.onnx.cast(is_it, torch::kInt64));
}

void distances(Call& call) {
  const auto dtype = call.dtype();
  const auto one = call.onnx.add("Unsqueeze", {call.name("x1"), call.onnx.ints({-2})});
  const auto other = call.onnx.add("Unsqueeze", {call.name("x2"), call.onnx.ints({-3})});
  const auto way = call.onnx.add("Sub", {one, other});
  const auto over = [&](const char* type, const Name& numbers) {
    return call.onnx.add(type, {numbers, call.onnx.ints({-1})}, {{"keepdims", std::int64_t{0}}});
  };
  const auto p = call.real("p");
  if (p == 2) return call.set(over("ReduceL2", way));
  if (p == 1) return call.set(over("ReduceL1", way));
  const auto length = call.onnx.add("Abs", {way});
  if (std::isinf(p)) return call.set(over("ReduceMax", length));
  if (p == 0) call.refuse("its p is 0");
  const auto sum = over("ReduceSum", call.onnx.add("Pow", {length, call.onnx.number(p, dtype)}));
  call.set(call.onnx.add("Pow", {sum, call.onnx.number(1 / p, dtype)}));
}

// Places of windows along an axis: int64 [windows, size].
torch::Tensor windows(std::int64_t count, std::int64_t step, std::int64_t size, std::int64_t dilation = 1) {
  return at::arange(count).unsqueeze(1) * step + at::arange(size) * dilation;
}

std::vector<std::int64_t> order_with(std::size_t dimensions, std::size_t from, std::size_t to) {
  std::vector<std::int64_t> order;
  for (std::size_t i = 0; i < dimensions; ++i) order.push_back(static_cast<std::int64_t>(i));
  const auto moved = order[from];
  order.erase(order.begin() + static_cast<std::ptrdiff_t>(from));
  order.insert(order.begin() + static_cast<std::ptrdiff_t>(to), moved);
  return order;
}

// torch.nn.functional.unfold: the pixels of each window become a column.
void im2col(Call& call) {
  const auto& from = call.value("self").sizes;
  const auto kernel = call.integers("kernel_size"), dilation = call.integers("dilation"),
             padding = call.integers("padding"), stride = call.integers("stride");
  const auto rank = from.size();
  std::vector<std::int64_t> pads(2 * rank);
  for (std::size_t i = 0; i < 2; ++i) pads[rank - 2 + i] = pads[2 * rank - 2 + i] = padding[i];
  auto x = call.onnx.add("Pad", {call.name("self"), call.onnx.ints(pads)});
  for (std::size_t i = 0; i < 2; ++i) {
    const auto size = from[rank - 2 + i];
    if (size.is_per_sample) call.refuse("its sizes depend on the batch");
    const auto count = (size.number + 2 * padding[i] - dilation[i] * (kernel[i] - 1) - 1) / stride[i] + 1;
    const auto places = windows(count, stride[i], kernel[i], dilation[i]).t().contiguous();
    x = taken(call, x, static_cast<std::int64_t>(rank - 2 + 2 * i), places);  // another dimension each
  }
  call.set(reshaped(call, transposed(call, x, order_with(rank + 2, rank, rank - 1)), call.result().sizes));
}

void col2im(Call& call) {
  const auto padding = call.integers("padding");
  call.set(call.onnx.add(
      "Col2Im",
      {call.name("self"), call.onnx.ints(call.integers("output_size")), call.onnx.ints(call.integers("kernel_size"))},
      {{"dilations", call.integers("dilation")},
       {"pads", std::vector{padding[0], padding[1], padding[0], padding[1]}},
       {"strides", call.integers("stride")}}));
}

// Tensor::unfold: the windows of an axis, with their numbers in a last dimension.
void unfold(Call& call) {
  const auto rank = call.value("self").sizes.size();
  const auto axis = call.dimension("dimension", rank);
  const auto count = call.result().sizes.at(static_cast<std::size_t>(axis));
  if (count.is_per_sample) call.refuse("its windows depend on the batch");
  const auto x =
      taken(call, call.name("self"), axis, windows(count.number, call.integer("step"), call.integer("size")));
  call.set(transposed(call, x, order_with(rank + 1, static_cast<std::size_t>(axis) + 1, rank)));
}

void as_strided(Call& call) {
  const auto& from = call.value("self");
  const auto& to = call.result().sizes;
  const auto strides = call.integers("stride");
  const bool moves = call.has("storage_offset") && call.integer("storage_offset") != from.tensor.storage_offset();
  if (!from.tensor.is_contiguous() || moves || to.empty() || from.sizes.empty()) call.refuse("it is of a view");
  const bool is_by_sample = to[0].is_per_sample && to[0] == from.sizes[0] && strides[0] == from.tensor.stride(0);
  auto places = at::zeros({1}, torch::kInt64);
  std::vector<std::int64_t> sizes;
  for (std::size_t i = is_by_sample ? 1 : 0; i < to.size(); ++i) {
    if (to[i].is_per_sample) call.refuse("its sizes depend on the batch");
    places = (places.unsqueeze(1) + at::arange(to[i].number) * strides[i]).flatten();
    sizes.push_back(to[i].number);
  }
  const auto flat = is_by_sample ? std::vector<std::int64_t>{0, -1} : std::vector<std::int64_t>{-1};
  const auto x = call.onnx.add("Reshape", {call.name("self"), call.onnx.ints(flat)});
  call.set(taken(call, x, is_by_sample ? 1 : 0, places.reshape(sizes)));
}

// The windows of an adaptive pool of n numbers to m: int64 [m, longest]. The last number of a shorter one is there
// again.
torch::Tensor adaptive_windows(std::int64_t n, std::int64_t m) {
  const auto at = at::arange(m);
  const auto starts = (at * n).floor_divide(m), ends = ((at + 1) * n + m - 1).floor_divide(m);
  const auto longest = (ends - starts).max().item<std::int64_t>();
  return at::minimum(starts.unsqueeze(1) + at::arange(longest), ends.unsqueeze(1) - 1);
}

template <int dimensions>
void adaptive_max_pool(Call& call) {
  auto sizes = call.value("self").sizes;
  const auto& to = call.result().sizes;
  const auto lead = sizes.size() - dimensions;
  auto places = at::zeros({1, 1}, torch::kInt64);  // the places are [windows, pixels of one] in the plane
  std::int64_t plane = 1;
  for (auto i = lead; i < sizes.size(); ++i) {
    if (sizes[i].is_per_sample) call.refuse("its sizes depend on the batch");
    const auto more = adaptive_windows(sizes[i].number, to[i].number);
    places = (places.unsqueeze(1).unsqueeze(3) * sizes[i].number + more.unsqueeze(0).unsqueeze(2))
                 .reshape({-1, places.size(1) * more.size(1)});
    plane *= sizes[i].number;
  }
  sizes.resize(lead), sizes.push_back({plane});
  const auto x = taken(call, reshaped(call, call.name("self"), sizes), static_cast<std::int64_t>(lead), places);
  const auto last = call.onnx.ints({-1});
  call.set(reshaped(call, call.onnx.add("ReduceMax", {x, last}), to));
  const auto which = call.onnx.add("ArgMax", {x}, {{"axis", std::int64_t{-1}}, {"keepdims", std::int64_t{0}}});
  const auto start = call.onnx.tensor(at::arange(places.size(0)) * places.size(1));
  const auto found =
      call.onnx.add("Gather", {call.onnx.tensor(places.flatten()), call.onnx.add("Add", {which, start})});
  call.set(reshaped(call, found, to), 1);
}

template <int dimensions>
void max_unpool(Call& call) {
  auto flat = call.value("self").sizes;
  auto wide = call.result().sizes;
  for (auto* sizes : {&flat, &wide}) {
    Size plane{1};
    for (int i = 0; i < dimensions; ++i) plane.number *= sizes->back().number, sizes->pop_back();
    sizes->push_back(plane);
  }
  const auto zeros = expanded(call, call.onnx.number(0, call.dtype()), wide);
  const Names inputs = {zeros, reshaped(call, call.name("indices"), flat), reshaped(call, call.name("self"), flat)};
  call.set(reshaped(call, scattered(call, inputs, std::ssize(flat) - 1, "none"), call.result().sizes));
}

void grid_sample(Call& call) {
  constexpr const char *modes[] = {"linear", "nearest", "cubic"}, *paddings[] = {"zeros", "border", "reflection"};
  call.set(call.onnx.add("GridSample", {call.name("input"), call.name("grid")},
                         {{"mode", std::string(modes[call.integer("interpolation_mode")])},
                          {"padding_mode", std::string(paddings[call.integer("padding_mode")])},
                          {"align_corners", std::int64_t{call.flag("align_corners")}}}));
}

// The places of all pixels are those of the identity.
void affine_grid(Call& call) {
  const auto& to = call.result().sizes;
  const auto axes = static_cast<std::int64_t>(to.size()) - 2;
  std::vector<std::int64_t> sizes = {1, 1};
  for (std::size_t i = 1; i + 1 < to.size(); ++i) sizes.push_back(to[i].number);
  const auto identity = at::eye(axes, axes + 1, torch::kFloat64).unsqueeze(0);
  const auto places = at::affine_grid_generator(identity, sizes, call.flag("align_corners")).reshape({-1, axes});
  const auto all = at::cat({places, at::ones({places.size(0), 1}, torch::kFloat64)}, 1).to(call.dtype());
  const auto theta = transposed(call, call.name("theta"), {0, 2, 1});
  call.set(reshaped(call, call.onnx.add("MatMul", {call.onnx.tensor(all), theta}), to));
}

void pixel_unshuffle(Call& call) {
  const auto& from = call.value("self").sizes;
  const auto factor = call.integer("downscale_factor");
  const auto lead = from.size() - 2;
  Sizes cut(from.begin(), from.end() - 2);
  for (auto i = lead; i < from.size(); ++i) cut.push_back({from[i].number / factor}), cut.push_back({factor});
  // [rows, h, columns, w] becomes [h, w, rows, columns].
  std::vector<std::int64_t> order;
  for (std::size_t i = 0; i < lead; ++i) order.push_back(static_cast<std::int64_t>(i));
  for (const auto place : {1, 3, 0, 2}) order.push_back(static_cast<std::int64_t>(lead) + place);
  call.set(reshaped(call, transposed(call, reshaped(call, call.name("self"), cut), order), call.result().sizes));
}

}  // namespace

void add_indexing_rules(Rules& rules) {
  rules.insert({{"index_add", by_index<"add">},
                {"index_copy", by_index<"none">},
                {"index_fill", by_index<"none">},
                {"scatter", scatter<"none">},
                {"scatter_add", scatter<"add">},
                {"scatter_reduce", scatter<"none">},
                {"slice_scatter", slice_scatter},
                {"select_scatter", select_scatter},
                {"diagonal", diagonal},
                {"diagonal_scatter", write_diagonal},
                {"diag_embed", write_diagonal},
                {"masked_scatter", masked_scatter},
                {"sort", sort},
                {"topk", sort},
                {"bucketize", buckets},
                {"searchsorted", buckets},
                {"one_hot", one_hot},
                {"_cdist_forward", distances},
                {"im2col", im2col},
                {"col2im", col2im},
                {"unfold", unfold},
                {"as_strided", as_strided},
                {"adaptive_max_pool2d", adaptive_max_pool<2>},
                {"adaptive_max_pool3d", adaptive_max_pool<3>},
                {"max_unpool2d", max_unpool<2>},
                {"max_unpool3d", max_unpool<3>},
                {"grid_sampler_2d", grid_sample},
                {"grid_sampler_3d", grid_sample},
                {"affine_grid_generator", affine_grid},
                {"pixel_unshuffle", pixel_unshuffle}});
}

}  // namespace vernier::graph
