// Rules of layers: products, convolutions, norms, pools and attention.
#include <ATen/ops/adaptive_avg_pool1d.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/eye.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/tensor.h>
#include <ATen/ops/zeros.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "onnx_rules.h"

namespace vernier::graph {

namespace {

void linear(Call& call) {
  const char* input = "input";
  if (call.value(input).sizes.size() == 2 && call.value("weight").sizes.size() == 2) {
    Names inputs = {call.name(input), call.name("weight")};
    if (call.has("bias")) inputs.push_back(call.name("bias"));
    return call.set(call.onnx.add("Gemm", inputs, {{"transB", std::int64_t{1}}}));
  }
  const auto product = call.onnx.add("MatMul", {call.name(input), transposed(call, call.name("weight"), {1, 0})});
  call.set(call.has("bias") ? call.onnx.add("Add", {product, call.name("bias")}) : product);
}

void matmul(Call& call) {
  const char* other = call.has("other") ? "other" : call.has("mat2") ? "mat2" : call.has("vec") ? "vec" : "tensor";
  call.set(call.onnx.add("MatMul", {call.name("self"), call.name(other)}));
}

void addmm(Call& call) {
  const auto alpha = static_cast<float>(call.real("alpha")), beta = static_cast<float>(call.real("beta"));
  call.set(call.onnx.add("Gemm", {call.name("mat1"), call.name("mat2"), call.name("self")},
                         {{"alpha", alpha}, {"beta", beta}}));
}

void einsum(Call& call) {
  Names names;
  for (const auto value : call.values("tensors")) names.push_back(call.onnx.name_of(value));
  call.set(call.onnx.add("Einsum", names, {{"equation", call.text("equation")}}));
}

std::vector<std::int64_t> of_each(std::vector<std::int64_t> numbers, std::size_t dimensions) {
  if (numbers.size() == 1) numbers.resize(dimensions, numbers[0]);
  return numbers;
}

std::vector<std::int64_t> both_sides(const std::vector<std::int64_t>& before) {
  auto pads = before;
  pads.insert(pads.end(), before.begin(), before.end());
  return pads;
}

// LibTorch makes every convolution of this one.
void convolution(Call& call) {
  const bool is_transposed = call.flag("transposed");
  const auto spatial = call.value("weight").sizes.size() - 2;
  std::vector<Attribute> attributes = {{"strides", of_each(call.integers("stride"), spatial)},
                                       {"dilations", of_each(call.integers("dilation"), spatial)},
                                       {"group", call.integer("groups")},
                                       {"pads", both_sides(of_each(call.integers("padding"), spatial))}};
  if (is_transposed) attributes.push_back({"output_padding", of_each(call.integers("output_padding"), spatial)});
  Names inputs = {call.name("input"), call.name("weight")};
  if (call.has("bias")) inputs.push_back(call.name("bias"));
  call.set(call.onnx.add(is_transposed ? "ConvTranspose" : "Conv", inputs, attributes));
}

// The sizes of a weight [channels] that is applied to dimension 1.
Name along_channels(Call& call, const char* weight, std::size_t dimensions) {
  Sizes sizes(dimensions, Size{1});
  sizes[1] = call.value(weight).sizes[0];
  return reshaped(call, call.name(weight), sizes);
}

Name scaled_and_shifted(Call& call, Name x, std::size_t dimensions) {
  if (call.has("weight")) x = call.onnx.add("Mul", {x, along_channels(call, "weight", dimensions)});
  if (call.has("bias")) x = call.onnx.add("Add", {x, along_channels(call, "bias", dimensions)});
  return x;
}

Name normalized_over(Call& call, const Name& x, const std::vector<std::int64_t>& axes, double epsilon) {
  const auto over = call.onnx.ints(axes);
  const auto centred = call.onnx.add("Sub", {x, call.onnx.add("ReduceMean", {x, over})});
  const auto variance = call.onnx.add("ReduceMean", {call.onnx.add("Mul", {centred, centred}), over});
  const auto sum = call.onnx.add("Add", {variance, call.onnx.number(epsilon, call.dtype())});
  return call.onnx.add("Div", {centred, call.onnx.add("Sqrt", {sum})});
}

void batch_norm(Call& call) {
  const auto& sizes = call.value("input").sizes;
  if (!call.has("running_mean")) {  // by the statistics of the batch
    std::vector<std::int64_t> axes = {0};
    for (std::size_t i = 2; i < sizes.size(); ++i) axes.push_back(static_cast<std::int64_t>(i));
    const auto x = normalized_over(call, call.name("input"), axes, call.real("eps"));
    return call.set(scaled_and_shifted(call, x, sizes.size()));
  }
  if (call.flag("training")) call.refuse("it is in training mode");
  const auto channels = sizes[1].number;
  const auto dtype = call.value("running_mean").dtype();
  const auto or_all = [&](const char* name, int number) {
    return call.has(name) ? call.name(name) : call.onnx.tensor(at::zeros({channels}, dtype) + number);
  };
  call.set(call.onnx.add(
      "BatchNormalization",
      {call.name("input"), or_all("weight", 1), or_all("bias", 0), call.name("running_mean"), call.name("running_var")},
      {{"epsilon", static_cast<float>(call.real("eps"))}}));
}

void layer_norm(Call& call) {
  const auto shape = call.integers("normalized_shape");
  const auto scale = call.has("weight") ? call.name("weight") : call.onnx.tensor(at::ones(shape, call.dtype()));
  Names inputs = {call.name("input"), scale};
  if (call.has("bias")) inputs.push_back(call.name("bias"));
  call.set(call.onnx.add(
      "LayerNormalization", inputs,
      {{"axis", -static_cast<std::int64_t>(shape.size())}, {"epsilon", static_cast<float>(call.real("eps"))}}));
}

void rms_norm(Call& call) {
  const auto count = static_cast<std::int64_t>(call.integers("normalized_shape").size());
  std::vector<std::int64_t> axes;
  for (std::int64_t i = 1; i <= count; ++i) axes.push_back(-i);
  const double epsilon = call.has("eps") ? call.real("eps") : std::numeric_limits<float>::epsilon();
  const auto x = call.name("input");
  const auto mean = call.onnx.add("ReduceMean", {call.onnx.add("Mul", {x, x}), call.onnx.ints(axes)});
  const auto root = call.onnx.add("Sqrt", {call.onnx.add("Add", {mean, call.onnx.number(epsilon, call.dtype())})});
  const auto normalized = call.onnx.add("Div", {x, root});
  call.set(call.has("weight") ? call.onnx.add("Mul", {normalized, call.name("weight")}) : normalized);
}

void group_norm(Call& call) {
  const auto& sizes = call.value("input").sizes;
  const auto grouped =
      call.onnx.add("Reshape", {call.name("input"), call.onnx.ints({0, call.integer("num_groups"), -1})});
  const auto x = reshaped(call, normalized_over(call, grouped, {2}, call.real("eps")), sizes);
  call.set(scaled_and_shifted(call, x, sizes.size()));
}

void dropout(Call& call) {
  if (call.flag("train") && call.real("p") > 0) call.refuse("it is in training mode");
  call.set(call.name(call.has("input") ? "input" : "self"));  // dropout_ has another name for it
}

template <int dimensions, int results = 1>
void max_pool(Call& call) {
  const auto kernel = of_each(call.integers("kernel_size"), dimensions);
  auto stride = of_each(call.integers("stride"), dimensions);
  if (stride.empty()) stride = kernel;
  const auto both = call.onnx.add("MaxPool", {call.name("self")},
                                  {{"kernel_shape", kernel},
                                   {"strides", stride},
                                   {"pads", both_sides(of_each(call.integers("padding"), dimensions))},
                                   {"dilations", of_each(call.integers("dilation"), dimensions)},
                                   {"ceil_mode", std::int64_t{call.flag("ceil_mode")}}},
                                  results);
  call.set(both[0]);
  if (both.size() == 1) return;
  const auto& sizes = call.value("self").sizes;  // ONNX counts the pixels of all planes, and LibTorch those of each
  std::int64_t plane = 1;
  for (auto i = sizes.size() - dimensions; i < sizes.size(); ++i) plane *= sizes[i].number;
  call.set(call.onnx.add("Mod", {both[1], call.onnx.ints({plane})}), 1);
}

template <int dimensions>
void average_pool(Call& call) {
  if (call.has("divisor_override")) call.refuse("it has a divisor of its own");
  const auto kernel = of_each(call.integers("kernel_size"), dimensions);
  auto stride = of_each(call.integers("stride"), dimensions);
  if (stride.empty()) stride = kernel;
  call.set(call.onnx.add("AveragePool", {call.name("self")},
                         {{"kernel_shape", kernel},
                          {"strides", stride},
                          {"pads", both_sides(of_each(call.integers("padding"), dimensions))},
                          {"count_include_pad", std::int64_t{call.flag("count_include_pad")}},
                          {"ceil_mode", std::int64_t{call.flag("ceil_mode")}}}));
}

// The windows have one size where the input's size is a multiple of the output's. Else a product averages each axis.
template <int dimensions>
void adaptive_average_pool(Call& call) {
  const auto& from = call.value("self").sizes;
  const auto& to = call.result().sizes;
  std::vector<std::int64_t> kernel, order;
  bool is_even = true;
  for (std::size_t i = 0; i < from.size(); ++i) order.push_back(static_cast<std::int64_t>(i));
  for (auto i = from.size() - dimensions; i < from.size(); ++i) {
    if (from[i].is_per_sample) call.refuse("its sizes depend on the batch");
    is_even = is_even && from[i].number % to[i].number == 0;
    kernel.push_back(from[i].number / to[i].number);
  }
  if (!is_even) {
    auto x = call.name("self");
    for (auto i = from.size() - dimensions; i < from.size(); ++i) {
      auto swapped = order;
      std::swap(swapped[i], swapped.back());
      const auto rows = at::adaptive_avg_pool1d(at::eye(from[i].number, call.dtype()), {to[i].number});
      x = transposed(call, call.onnx.add("MatMul", {transposed(call, x, swapped), call.onnx.tensor(rows)}), swapped);
    }
    return call.set(x);
  }
  call.set(call.onnx.add("AveragePool", {call.name("self")}, {{"kernel_shape", kernel}, {"strides", kernel}}));
}

// Float numbers that are added to the scores of attention.
Name mask_of(Call& call, torch::ScalarType dtype) {
  const auto lowest = -std::numeric_limits<double>::infinity();
  if (call.has("attn_mask")) {
    if (call.value("attn_mask").dtype() != torch::kBool) return call.name("attn_mask", dtype);
    return call.onnx.add("Where",
                         {call.name("attn_mask"), call.onnx.number(0, dtype), call.onnx.number(lowest, dtype)});
  }
  const auto& query = call.value("query").sizes;
  const auto& key = call.value("key").sizes;
  const auto rows = query[query.size() - 2], columns = key[key.size() - 2];
  if (rows.is_per_sample || columns.is_per_sample) call.refuse("its length depends on the batch");
  return call.onnx.tensor(at::zeros({rows.number, columns.number}, dtype)
                              .masked_fill(at::ones({rows.number, columns.number}, torch::kBool).triu(1), lowest));
}

// Keys or values with as many heads as the queries have: each is there several times.
Name with_all_heads(Call& call, const char* of) {
  auto sizes = call.value(of).sizes;
  const auto rank = sizes.size(), place = rank - 3;
  const auto wanted = rank < 3 ? Size{} : call.value("query").sizes[place];
  if (!call.flag("enable_gqa") || rank < 3 || sizes[place] == wanted) return call.name(of);
  auto widened = sizes;
  widened.insert(widened.begin() + static_cast<std::ptrdiff_t>(place) + 1, {wanted.number / sizes[place].number});
  const auto x = call.onnx.add("Unsqueeze", {call.name(of), call.onnx.ints({static_cast<std::int64_t>(place) + 1})});
  sizes[place] = wanted;
  return reshaped(call, call.onnx.add("Expand", {x, call.onnx.sizes(widened)}), sizes);
}

void attention(Call& call) {
  if (call.real("dropout_p") > 0) call.refuse("it is in training mode");
  const auto dimensions = call.value("key").sizes.size();
  const auto width = static_cast<double>(call.value("query").sizes.back().number);
  const auto dtype = call.dtype();
  std::vector<std::int64_t> order;
  for (std::size_t i = 0; i < dimensions; ++i) order.push_back(static_cast<std::int64_t>(i));
  std::swap(order[dimensions - 1], order[dimensions - 2]);
  const double scale = call.has("scale") ? call.real("scale") : 1 / std::sqrt(width);
  const auto query = call.onnx.add("Mul", {call.name("query"), call.onnx.number(scale, dtype)});
  auto scores = call.onnx.add("MatMul", {query, transposed(call, with_all_heads(call, "key"), order)});
  const bool has_mask = call.has("attn_mask");
  const auto mask = has_mask || call.flag("is_causal") ? mask_of(call, dtype) : Name();
  if (!mask.empty()) scores = call.onnx.add("Add", {scores, mask});
  auto weights = call.onnx.add("Softmax", {scores}, {{"axis", std::int64_t{-1}}});
  if (has_mask) {  // a row that the mask has closed gets zeros, and no NaN
    const auto lowest = call.onnx.number(-std::numeric_limits<double>::infinity(), dtype);
    const auto is_closed = op(call, "Equal", {op(call, "ReduceMax", {mask, call.onnx.ints({-1})}), lowest});
    weights = op(call, "Where", {is_closed, call.onnx.number(0, dtype), weights});
  }
  call.set(call.onnx.add("MatMul", {weights, with_all_heads(call, "value")}));
}

// Bags of one length: their places are arange(0, all, length), as for a matrix of indices.
void embedding_bag(Call& call) {
  const auto& bags = call.result().sizes[0];
  const auto& indices = call.value("indices").sizes;
  if (indices.size() != 1 || !indices[0].is_per_sample || !bags.is_per_sample || indices[0].number % bags.number != 0 ||
      call.has("per_sample_weights") || call.flag("include_last_offset")) {
    call.refuse("its bags are not the rows of a matrix");
  }
  if (call.has("padding_idx") && call.integer("padding_idx") >= 0) call.refuse("it has a padding_idx");
  const auto rows =
      call.onnx.add("Reshape", {call.name("indices"), call.onnx.ints({-1, indices[0].number / bags.number})});
  const auto vectors = call.onnx.add("Gather", {call.name("weight"), rows}, {{"axis", std::int64_t{0}}});
  constexpr const char* kinds[] = {"ReduceSum", "ReduceMean", "ReduceMax"};
  const auto* kind = kinds[static_cast<std::size_t>(call.integer("mode"))];
  call.set(call.onnx.add(kind, {vectors, call.onnx.ints({1})}, {{"keepdims", std::int64_t{0}}}));
}

// An axis that upsample_nearest2d, upsample_bilinear2d and so on make longer or shorter.
struct Resized {
  std::int64_t axis, from, to;
  std::optional<double> factor;  // the scale_factor that LibTorch computes with
};

const char* input_of(const Call& call) {
  return call.has("input") ? "input" : "self";
}

std::optional<double> factor_of(const Call& call, std::size_t axis, std::size_t axes) {
  if (call.has("scale_factors")) return call.at("scale_factors").constant.toDoubleVector().at(axis);
  constexpr const char* names[] = {"scales_d", "scales_h", "scales_w"};
  const char* name = axes == 1 ? "scales" : names[3 - axes + axis];
  return call.has(name) ? std::optional(call.real(name)) : std::nullopt;
}

std::vector<Resized> resized_axes(const Call& call) {
  const auto& from = call.value(input_of(call)).sizes;
  const auto& to = call.result().sizes;
  std::vector<Resized> all;
  for (std::size_t i = 2; i < from.size(); ++i) {
    if (from[i].is_per_sample || to[i].is_per_sample) call.refuse("its sizes depend on the batch");
    all.push_back(
        {static_cast<std::int64_t>(i), from[i].number, to[i].number, factor_of(call, i - 2, from.size() - 2)});
  }
  return all;
}

// Takes the pixels that LibTorch takes: the operator itself returns them, since it rounds by dtype and memory format.
// Resize of ONNX takes other ones for some sizes.
void upsample_nearest(Call& call) {
  auto x = call.name(input_of(call));
  const auto& like = call.value(input_of(call)).tensor;
  const auto dtype = like.scalar_type() == torch::kFloat64 ? torch::kFloat64 : torch::kFloat32;
  for (const auto& [axis, from, to, factor] : resized_axes(call)) {
    const auto last = like.dim() - 1;
    const auto places = at::empty_like(like, dtype);
    places.transpose(axis, last).copy_(at::arange(from, dtype));
    const auto taken = call.computed(places).transpose(axis, last).flatten(0, -2)[0];
    x = call.onnx.add("Gather", {x, call.onnx.tensor(taken.to(torch::kInt64))}, {{"axis", axis}});
  }
  call.set(x);
}

// Resize computes with the ratio of the sizes, or with factors. LibTorch copies an axis whose size stays.
template <Literal mode>
void upsample(Call& call) {
  const bool has_corners = call.flag("align_corners"), is_cubic = mode.chars[0] == 'c';
  std::vector<std::int64_t> axes, sizes;
  std::vector<float> scales;
  bool by_scales = false;
  for (const auto& [axis, from, to, factor] : resized_axes(call)) {
    const auto length = static_cast<double>(from), wanted = static_cast<double>(to);
    const bool is_ratio = has_corners || !factor || std::abs(length * *factor - wanted) < 1e-6 * wanted;
    axes.push_back(axis), sizes.push_back(to);
    scales.push_back(static_cast<float>(from == to ? 1 : is_ratio ? wanted / length : *factor));
    by_scales |= !is_ratio;
    const bool is_refused = is_cubic || std::floor(static_cast<float>(from) * scales.back()) != wanted;
    if (!is_ratio && is_refused) {
      call.refuse(c10::str("its scale_factor ", *factor, " makes ", to, " of ", from,
                           "; take `size`, or recompute_scale_factor=True"));
    }
  }
  std::vector<Attribute> attributes = {
      {"mode", std::string(mode.chars)},
      {"coordinate_transformation_mode", std::string(has_corners ? "align_corners" : "half_pixel")},
      {"axes", axes}};
  if (is_cubic) attributes.push_back({"cubic_coeff_a", -0.75F});
  Names inputs = {call.name(input_of(call)), ""};
  if (by_scales) inputs.push_back(call.onnx.tensor(at::tensor(scales)));
  if (!by_scales) inputs.insert(inputs.end(), {"", call.onnx.ints(sizes)});
  call.set(call.onnx.add("Resize", inputs, attributes));
}

// By the statistics of each sample and channel.
void instance_norm(Call& call) {
  if (!call.flag("use_input_stats")) return batch_norm(call);
  const auto rank = call.value("input").sizes.size();
  std::vector<std::int64_t> axes;
  for (std::size_t i = 2; i < rank; ++i) axes.push_back(static_cast<std::int64_t>(i));
  call.set(scaled_and_shifted(call, normalized_over(call, call.name("input"), axes, call.real("eps")), rank));
}

}  // namespace

void add_layer_rules(Rules& rules) {
  rules.insert({
      {"convolution", convolution},
      {"_convolution", convolution},
      {"linear", linear},
      {"matmul", matmul},
      {"mm", matmul},
      {"bmm", matmul},
      {"mv", matmul},
      {"dot", matmul},
      {"vdot", matmul},
      {"addmm", addmm},
      {"einsum", einsum},
      {"batch_norm", batch_norm},
      {"layer_norm", layer_norm},
      {"rms_norm", rms_norm},
      {"group_norm", group_norm},
      {"dropout", dropout},
      {"max_pool1d", max_pool<1>},
      {"max_pool2d", max_pool<2>},
      {"max_pool3d", max_pool<3>},
      {"max_pool2d_with_indices", max_pool<2, 2>},
      {"max_pool3d_with_indices", max_pool<3, 2>},
      {"avg_pool2d", average_pool<2>},
      {"avg_pool3d", average_pool<3>},
      {"adaptive_avg_pool2d", adaptive_average_pool<2>},
      {"adaptive_avg_pool3d", adaptive_average_pool<3>},
      {"scaled_dot_product_attention", attention},
      {"embedding_bag", embedding_bag},
      {"upsample_nearest1d", upsample_nearest},
      {"_upsample_nearest_exact1d", upsample_nearest},
      {"upsample_nearest2d", upsample_nearest},
      {"_upsample_nearest_exact2d", upsample_nearest},
      {"upsample_nearest3d", upsample_nearest},
      {"_upsample_nearest_exact3d", upsample_nearest},
      {"upsample_linear1d", upsample<"linear">},
      {"upsample_bilinear2d", upsample<"linear">},
      {"upsample_trilinear3d", upsample<"linear">},
      {"upsample_bicubic2d", upsample<"cubic">},
      {"instance_norm", instance_norm},
  });
}

}  // namespace vernier::graph
