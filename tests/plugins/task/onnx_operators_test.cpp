// The rules by which operators are written as ONNX, with options that the models of other tests do not have.
#include <doctest/doctest.h>
#include <torch/nn/modules/linear.h>
#include <vernier/error.h>
#include <vernier/graph/graph_export.h>
#include <vernier/safetensors.h>

#include <limits>

#include "python.h"
#include "thrown.h"

namespace onnx_operators_test {

namespace {

using at::Tensor;

struct Case {
  const char* name;
  Tensor (*forward)(const Tensor& x);  // x: float32 [samples, 4, 6], from -1 to 1
};

Tensor numbers(std::int64_t samples) {
  const auto places = torch::arange(samples * 24);
  return ((places * 7919 + 104729).remainder(2003) - 1001).to(torch::kFloat32).div(1024).reshape({samples, 4, 6});
}

Tensor whole(const Tensor& x) {
  return (x * 7).to(torch::kInt64);
}

Tensor picture(const Tensor& x) {
  return x.reshape({-1, 2, 3, 4});
}

Tensor with_nan(const Tensor& x) {
  return x.masked_fill(x > 0.5, std::numeric_limits<double>::quiet_NaN());
}

constexpr auto infinity = std::numeric_limits<double>::infinity();
constexpr auto last_number = std::numeric_limits<std::int64_t>::max();

using Nearest = Tensor (*)(const Tensor& x, at::OptionalIntArrayRef size, std::optional<at::ArrayRef<double>> factors);

// Pictures of many heights become ones of other heights.
Tensor of_all_sizes(const Tensor& x, Nearest upsampled) {
  const auto tall = x.reshape({-1, 1, 24, 1}).repeat({1, 2, 10, 3});
  std::vector<Tensor> all;
  for (const auto& [from, to] :
       {std::pair{224, 32}, {14, 2}, {28, 4}, {112, 16}, {20, 12}, {7, 40}, {2, 41}, {6, 74}}) {
    all.push_back(upsampled(tall.narrow(2, 0, from), at::IntArrayRef{to, 3}, {}));
  }
  return at::cat(all, 2);
}

const std::vector<double> factors = {1.3, 1.7};  // factors for height 3, which stays, and width 4

const std::vector<Case> cases = {
    {"diff", [](auto& x) { return x.diff(1, 1); }},
    {"diff_prepend", [](auto& x) { return x.diff(1, -1, x.narrow(2, 0, 1) - 1); }},
    {"diff_both", [](auto& x) { return x.diff(1, -1, x.narrow(2, 0, 2), x.narrow(2, 3, 1)); }},
    {"diff_twice", [](auto& x) { return x.diff(2); }},
    {"floor_divide", [](auto& x) { return x.floor_divide(0.3); }},
    {"divided_by_tenths",
     [](auto& x) {
       const auto y = (x * 10).round() / 10, z = y.to(torch::kFloat64);
       return at::cat({y.floor_divide(0.1), y.remainder(0.1), y.div(-0.1, "floor"), y.remainder(-0.1), z.floor_divide(0.1), z.remainder(0.3)}, 1);
     }},
    {"divided_by_ends",
     [](auto& x) {
       const auto y = with_nan(x);
       return at::cat({y.floor_divide(infinity), y.remainder(-infinity), y.floor_divide(0.0), y.remainder(0.0), at::full({}, infinity).floor_divide(y)}, 1);
     }},
    {"floor_divide_whole", [](auto& x) { return whole(x).floor_divide(3); }},
    {"remainder", [](auto& x) { return x.remainder(0.3); }},
    {"remainder_whole", [](auto& x) { return whole(x).remainder(-3); }},
    {"div_trunc", [](auto& x) { return x.div(0.3, "trunc"); }},
    {"div_trunc_far", [](auto& x) { return (x * 1e30).div(0.3, "trunc"); }},
    {"div_floor_whole", [](auto& x) { return whole(x).div(2, "floor"); }},
    {"div_trunc_whole", [](auto& x) { return whole(x).div(2, "trunc"); }},
    {"rsub", [](auto& x) { return 1 - x; }},
    {"add_alpha", [](auto& x) { return x.add(x.sin(), -2.5); }},
    {"pow_scalar_base", [](auto& x) { return at::pow(2, x); }},
    {"pow_cube", [](auto& x) { return x.pow(3); }},
    {"pow_whole", [](auto& x) { return whole(x).pow(2); }},
    {"rsqrt", [](auto& x) { return (x + 2).rsqrt(); }},
    {"log1p", [](auto& x) { return (x.abs()).log1p(); }},
    {"expm1", [](auto& x) { return x.expm1(); }},
    {"clamp_tensor", [](auto& x) { return x.clamp(at::full({6}, -0.25), at::full({6}, 0.5)); }},
    {"clamp_min", [](auto& x) { return x.clamp_min(0.1); }},
    {"clamp_whole", [](auto& x) { return whole(x).clamp(-2, 3); }},
    {"hardtanh", [](auto& x) { return at::hardtanh(x, -0.5, 0.25); }},
    {"softplus", [](auto& x) { return at::softplus(x * 9, 2, 20); }},
    {"elu", [](auto& x) { return at::elu(x, 0.7); }},
    {"celu", [](auto& x) { return at::celu(x, 0.7); }},
    {"selu", [](auto& x) { return at::selu(x); }},
    {"gelu_tanh", [](auto& x) { return at::gelu(x, "tanh"); }},
    {"glu", [](auto& x) { return at::glu(x, 1); }},
    {"mish", [](auto& x) { return at::mish(x); }},
    {"hardsigmoid", [](auto& x) { return at::hardsigmoid(x * 9); }},
    {"hardswish", [](auto& x) { return at::hardswish(x * 9); }},
    {"log_sigmoid", [](auto& x) { return at::log_sigmoid(x * 9); }},
    {"prelu", [](auto& x) { return at::prelu(x, at::full({4}, 0.3)); }},
    {"threshold_nan", [](auto& x) { return at::threshold((x - x) / (x - x), 0.1, -2).isnan().to(torch::kInt64); }},
    {"rounded_whole", [](auto& x) { return whole(x).trunc() + whole(x).fix() + whole(x).floor() + whole(x).ceil(); }},
    {"round_whole", [](auto& x) { return whole(x).round(); }},
    {"isnan_whole", [](auto& x) { return whole(x).isnan().to(torch::kInt64); }},
    {"copy", [](auto& x) { return at::zeros_like(x, torch::kFloat64).copy_(x.narrow(2, 0, 1)); }},
    {"threshold", [](auto& x) { return at::threshold(x, 0.1, -2); }},
    {"compare_whole", [](auto& x) { return whole(x).gt(0.5).to(torch::kFloat32); }},
    {"whole_far", [](auto& x) { return at::cat({whole(x).masked_fill(x > 0, last_number), whole(x).clamp_max(last_number), (whole(x) + ((1L << 60) + 1)).eq((1L << 60) + 3).to(torch::kInt64)}, 1); }},
    {"compare_bools", [](auto& x) { return at::cat({x.gt(0).lt(x.gt(-0.5)), x.gt(0).ge(x.lt(0.5)), x.gt(0).gt(0), x.gt(0).ne(2)}, 1); }},
    {"bools",
     [](auto& x) {
       const auto a = x > 0, b = x > 0.5, c = x < -0.5;
       return at::cat({a * b, a + c, at::maximum(b, c), at::minimum(a, b), at::where(c, a, b), a.masked_fill(c, true), a.clone().index_put_({c}, at::full({}, true)), a.masked_scatter(c, b), std::get<0>(a.sort(2))}, 1);
     }},
    {"places_of_bools", [](auto& x) { return x.gt(0).argsort(true, 2) + std::get<1>(x.gt(0).max(2, true)); }},
    {"bytes_of_bools", [](auto& x) { return x.gt(0).view(torch::kUInt8).to(torch::kInt64) + x.gt(0.5).view(torch::kInt8); }},
    {"compare_mixed", [](auto& x) { return whole(x).ge(x).to(torch::kFloat32); }},
    {"equal_whole", [](auto& x) { return whole(x).eq(2).to(torch::kInt64); }},
    {"logical", [](auto& x) { return ((x.gt(0) & x.lt(0.5)) | ~x.gt(-0.5)).to(torch::kInt64); }},
    {"where_scalar", [](auto& x) { return at::where(x > 0, x, -1.0); }},
    {"where_whole", [](auto& x) { return at::where(x > 0, whole(x), at::full({6}, 9, torch::kInt64)); }},
    {"masked_fill", [](auto& x) { return x.masked_fill(x < 0, 3); }},
    {"mean_all_but_samples", [](auto& x) { return x.mean({1, 2}, true); }},
    {"mean_whole", [](auto& x) { return whole(x).to(torch::kFloat64).mean(1); }},
    {"sum_bool", [](auto& x) { return (x > 0).sum(-1); }},
    {"amax", [](auto& x) { return x.amax({1, 2}); }},
    {"prod", [](auto& x) { return x.prod(1); }},
    {"var", [](auto& x) { return x.var(2); }},
    {"std_biased", [](auto& x) { return x.std({1, 2}, false, true); }},
    {"norm", [](auto& x) { return x.norm(2, -1, true); }},
    {"logsumexp", [](auto& x) { return x.logsumexp(-1); }},
    {"argmax", [](auto& x) { return x.argmax(-1, true); }},
    {"max_dim", [](auto& x) { return std::get<0>(x.max(1)) + std::get<1>(x.max(1)); }},
    {"min_dim", [](auto& x) { return std::get<0>(x.min(2, true)); }},
    {"most_with_nan",
     [](auto& x) {
       const auto y = with_nan(x);
       return at::cat({y.amax({2}), y.amin({2}), std::get<0>(y.min(2)), std::get<1>(y.max(2)), y.argmin(2), y.amax({1, 2}, true).squeeze(2), x.argmax(2)}, 1);
     }},
    {"maximum", [](auto& x) { return at::maximum(x, x.flip({2})); }},
    {"cumsum", [](auto& x) { return x.cumsum(1); }},
    {"cumsum_bool", [](auto& x) { return (x > 0).cumsum(-1); }},
    {"log_softmax", [](auto& x) { return x.log_softmax(1); }},
    {"softmax_dtype", [](auto& x) { return x.softmax(-1, torch::kFloat64); }},
    {"flip", [](auto& x) { return x.flip({1, 2}); }},
    {"roll", [](auto& x) { return x.roll({1, -2}, {1, 2}); }},
    {"repeat", [](auto& x) { return x.repeat({1, 2, 1}); }},
    {"repeat_new", [](auto& x) { return x.unsqueeze(1).repeat({1, 2, 1, 3}); }},
    {"repeat_interleave", [](auto& x) { return x.repeat_interleave(2, 1); }},
    {"expand", [](auto& x) { return x.unsqueeze(1).expand({-1, 3, -1, -1}); }},
    {"stack", [](auto& x) { return at::stack({x, x * 2}, 2); }},
    {"cat_mixed", [](auto& x) { return at::cat({x, whole(x)}, 1); }},
    {"split_sizes", [](auto& x) { return x.split_with_sizes({1, 2, 3}, 2)[1] * 2; }},
    {"chunk_uneven", [](auto& x) { return x.chunk(4, 2)[1] + 1; }},
    {"unbind", [](auto& x) { return x.unbind(1)[2] - x.unbind(2)[1].narrow(1, 0, 1); }},
    {"select_negative", [](auto& x) { return x.select(2, -2); }},
    {"slice_step", [](auto& x) { return x.slice(2, -5, -1, 2); }},
    {"narrow_negative", [](auto& x) { return x.narrow(2, -3, 2); }},
    {"index_select", [](auto& x) { return x.index_select(1, at::tensor({3, 0, 0})); }},
    {"gather", [](auto& x) { return x.gather(2, whole(x).abs().clamp_max(5)); }},
    {"take_along_dim", [](auto& x) { return at::take_along_dim(x, whole(x).abs().clamp_max(3), 1); }},
    {"index_two", [](auto& x) { return x.index({at::indexing::Slice(), at::tensor({1, 2}), at::tensor({0, 5})}); }},
    {"tril", [](auto& x) { return x.tril(-1); }},
    {"triu", [](auto& x) { return x.triu(2); }},
    {"pad_constant", [](auto& x) { return at::constant_pad_nd(x, {1, 2, 0, 1}, 0.5); }},
    {"pad_crop", [](auto& x) { return at::constant_pad_nd(x, {-1, 2}); }},
    {"pad_reflect", [](auto& x) { return at::pad(x, {2, 1}, "reflect"); }},
    {"pad_replicate", [](auto& x) { return at::pad(x, {2, 1}, "replicate"); }},
    {"pixel_shuffle", [](auto& x) { return at::pixel_shuffle(x.reshape({-1, 4, 2, 3}), 2); }},
    {"permute_reshape", [](auto& x) { return x.permute({0, 2, 1}).reshape({-1, 3, 8}); }},
    {"view_merged", [](auto& x) { return x.reshape({-1, 6}).matmul(at::ones({6, 2})).reshape({-1, 4, 2}); }},
    {"einsum", [](auto& x) { return at::einsum("bij,bkj->bik", {x, x}); }},
    {"outer", [](auto& x) { return x * at::outer(at::arange(4), at::arange(6)); }},
    {"bmm", [](auto& x) { return x.bmm(x.transpose(1, 2)); }},
    {"baddbmm", [](auto& x) { return at::baddbmm(x.narrow(2, 0, 4), x, x.transpose(1, 2), 0.5, 2); }},
    {"max_pool_ceil", [](auto& x) { return at::max_pool2d(picture(x), 2, 2, 0, 1, true); }},
    {"max_pool_padding", [](auto& x) { return at::max_pool2d(picture(x), 3, 2, 1); }},
    {"avg_pool_padding", [](auto& x) { return at::avg_pool2d(picture(x), 3, 2, 1, false, true); }},
    {"avg_pool_no_padding", [](auto& x) { return at::avg_pool2d(picture(x), 3, 2, 1, false, false); }},
    {"avg_pool_ceil", [](auto& x) { return at::avg_pool2d(picture(x), 2, 2, 0, true); }},
    {"adaptive", [](auto& x) { return at::adaptive_avg_pool2d(picture(x), {3, 2}); }},
    {"conv_dilated", [](auto& x) { return at::conv1d(x, at::ones({2, 4, 2}), {}, 1, 1, 2); }},
    {"conv_same", [](auto& x) { return at::conv1d(x, at::ones({2, 4, 3}), {}, 1, "same"); }},
    {"conv_grouped", [](auto& x) { return at::conv1d(x, at::ones({4, 2, 3}), at::ones({4}), 2, 1, 1, 2); }},
    {"conv_transpose", [](auto& x) { return at::conv_transpose1d(x, at::ones({4, 3, 3}), {}, 2, 1, 1); }},
    {"upsample_nearest", [](auto& x) { return at::upsample_nearest2d(picture(x), {5, 7}); }},
    {"upsample_nearest_pairs", [](auto& x) { return of_all_sizes(x, at::upsample_nearest2d); }},
    {"upsample_nearest_double", [](auto& x) { return of_all_sizes(x.to(torch::kFloat64), at::upsample_nearest2d); }},
    {"upsample_exact_pairs", [](auto& x) { return of_all_sizes(x, at::_upsample_nearest_exact2d); }},
    {"upsample_nearest_factor", [](auto& x) { return at::upsample_nearest2d(picture(x), {}, factors); }},
    {"upsample_exact_factor", [](auto& x) { return at::_upsample_nearest_exact2d(picture(x), {}, factors); }},
    {"upsample_linear_factor", [](auto& x) { return at::upsample_bilinear2d(picture(x), {}, false, factors); }},
    {"upsample_linear_less", [](auto& x) { return at::upsample_linear1d(x, {}, false, std::array{0.3}); }},
    {"upsample_one", [](auto& x) { return at::upsample_linear1d(x, {1}, false); }},
    {"upsample_linear", [](auto& x) { return at::upsample_bilinear2d(picture(x), {6, 8}, false); }},
    {"upsample_corners", [](auto& x) { return at::upsample_bilinear2d(picture(x), {5, 7}, true); }},
    {"upsample_smaller", [](auto& x) { return at::upsample_bilinear2d(picture(x), {2, 3}, false); }},
    {"upsample_cubic", [](auto& x) { return at::upsample_bicubic2d(picture(x), {6, 8}, false); }},
    {"group_norm", [](auto& x) { return at::group_norm(x, 2, at::arange(4.0F), at::ones({4})); }},
    {"layer_norm_two", [](auto& x) { return at::layer_norm(x, {4, 6}); }},
    {"rms_norm", [](auto& x) { return at::rms_norm(x, {6}, at::arange(6.0F)); }},
    {"instance_norm", [](auto& x) { return at::instance_norm(x, {}, {}, {}, {}, true, 0.1, 1e-5, false); }},
    {"attention_causal", [](auto& x) { return at::scaled_dot_product_attention(x, x, x, {}, 0, true); }},
    {"attention_mask",
     [](auto& x) {
       return at::scaled_dot_product_attention(x, x, x, at::ones({4, 4}, torch::kBool).tril(), 0, false, 0.3);
     }},
    {"attention_closed_row",
     [](auto& x) {
       const auto mask = at::ones({4, 4}, torch::kBool).tril(-1);
       return at::scaled_dot_product_attention(x, x, x, mask) + at::scaled_dot_product_attention(x, x, x, at::zeros({4, 4}).masked_fill(~mask, -infinity));
     }},
    {"embedding", [](auto& x) { return at::embedding(at::arange(30.0F).reshape({10, 3}), whole(x).abs()); }},
    {"full_like", [](auto& x) { return x + at::full_like(x, 2) + at::zeros_like(x) + at::ones({x.size(0), 1, 1}); }},
    {"arange_samples", [](auto& x) { return x + at::arange(x.size(2)); }},
    {"sum_of_dims", [](auto& x) { return x.sum({1}, true, torch::kFloat64); }},
    {"square", [](auto& x) { return x.square() + x.sign() + x.frac(); }},
    {"round", [](auto& x) { return (x * 3.5).round() + (x * 5).trunc(); }},
    {"lerp", [](auto& x) { return at::lerp(x, x.flip({2}), 0.25); }},
    {"addcmul", [](auto& x) { return at::addcmul(x, x, x, 2); }},
    {"movedim", [](auto& x) { return x.movedim(1, 2).flatten(1).unflatten(1, {2, 12}); }},
    {"addcdiv", [](auto& x) { return at::addcdiv(x, x, x + 2, -1); }},
    {"movedim_several", [](auto& x) { return x.unsqueeze(1).movedim({3, 1}, {1, 2}); }},
    {"all", [](auto& x) { return (x > -0.9).all(1, true).to(torch::kInt64); }},
    {"topk_smallest", [](auto& x) { return std::get<1>(x.topk(3, 1, false)); }},
    {"topk", [](auto& x) { return std::get<0>(x.topk(2, -1)); }},
    {"any", [](auto& x) { return (x > 0.9).any(-1).to(torch::kInt64); }},
    {"double_activations",
     [](auto& x) {
       const auto y = at::celu(x.to(torch::kFloat64), 0.7);
       return at::prelu(at::softplus(y), at::full({4}, 0.3, torch::kFloat64)).asin() + at::gelu(y) + at::leaky_relu(y) + y.asinh() + y.div(2).atanh() + (y + 2).acosh() + at::rrelu(y);
     }},
    {"double_convolution",
     [](auto& x) {
       const auto y = at::conv1d(x.to(torch::kFloat64), at::ones({2, 4, 2}, torch::kFloat64), {}, 1, 1, 2);
       return at::upsample_linear1d(at::avg_pool1d(y, 2), {9}, false);
     }},
    {"double_lstm",
     [](auto& x) {
       const auto y = x.to(torch::kFloat64), state = at::zeros({1, x.size(0), 3}, torch::kFloat64);
       const auto weight = [](int width) { return at::linspace(-1, 1, 12 * width, torch::kFloat64).reshape({12, width}); };
       return std::get<0>(at::lstm(y, {state, state}, {weight(6), weight(3)}, false, 1, 0, false, false, true));
     }},
    {"double_rnn",
     [](auto& x) {
       const auto y = x.to(torch::kFloat64), state = at::zeros({1, x.size(0), 3}, torch::kFloat64);
       const auto weight = [](int width) { return at::linspace(-1, 1, 3 * width, torch::kFloat64).reshape({3, width}); };
       return std::get<0>(at::rnn_tanh(y, state, {weight(6), weight(3)}, false, 1, 0, false, false, true));
     }},
    {"of_bases", [](auto& x) { return (x + 2).log2() + (x + 2).log10() + x.exp2(); }},
    {"fmod", [](auto& x) { return x.fmod(0.3) + whole(x).fmod(3); }},
    {"shrink", [](auto& x) { return at::hardshrink(x, 0.4) + at::softshrink(x, 0.2); }},
    {"nan_tensor", [](auto& x) { return at::where(x > 0.5, at::full({}, std::numeric_limits<float>::quiet_NaN()), x); }},
    {"shrink_nan", [](auto& x) { return at::hardshrink(with_nan(x), 0.4) + at::softshrink(with_nan(x), 0.2); }},
    {"rrelu", [](auto& x) { return at::rrelu(x); }},
    {"asinh", [](auto& x) { return x.asinh() + x.div(2).atanh() + (x + 2).acosh() + x.sgn(); }},
    {"xor", [](auto& x) { return x.gt(0).bitwise_xor(x.gt(0.5)).to(torch::kInt64); }},
    {"multiply", [](auto& x) { return x.multiply(x).subtract(1).divide(x + 2).negative().absolute().clip(0.1); }},
    {"multiply_in_place", [](auto& x) { return (x + 1).multiply_(2).subtract_(1); }},
    {"tensordot", [](auto& x) { return at::tensordot(x, at::ones({6, 4, 2}), {1, 2}, {1, 0}); }},
    {"cosine", [](auto& x) { return at::cosine_similarity(x, x.flip({2}), 2) + at::pairwise_distance(x, x * 2); }},
    {"repeat_samples", [](auto& x) { return at::arange(6.0F).repeat({x.size(0), 4, 1}) * x; }},
    {"interleave_samples", [](auto& x) { return at::ones({4, 1, 6}).repeat_interleave(x.size(0), 1).transpose(0, 1) * x; }},
    {"slice_samples", [](auto& x) { return x * at::arange(4096.0F).slice(0, 0, x.size(0)).reshape({-1, 1, 1}); }},
    {"slice_from_samples", [](auto& x) { return at::cat({x, x * 2}).slice(0, x.size(0), 2 * x.size(0)); }},
    {"in_place_view",
     [](auto& x) {
       auto y = x * 2;
       y.select(1, 0).mul_(3);
       y.slice(2, 1, 5, 2).add_(y.narrow(2, 0, 2));
       y.transpose(1, 2).unsqueeze(0).narrow(2, 0, 3).exp_();
       y.permute({2, 0, 1}).view({3, 2, -1, 4}).select(0, 1).fill_(0.5);
       return y;
     }},
    {"in_place_base",
     [](auto& x) {
       auto y = x * 2, row = y.select(1, 1), all = y.flatten(1);
       y.add_(1);
       all.relu_();
       row.copy_(x.select(1, 0));
       return row.unsqueeze(1) + y + all.narrow(1, 0, 6).unsqueeze(1);
     }},
    {"in_place_parts",
     [](auto& x) {
       const auto y = x + 1;
       const auto parts = y.chunk(2, 2), rows = y.unbind(1);
       parts[0].sigmoid_(), parts[1].tanh_(), rows[2].zero_();
       return parts[0] * parts[1] + rows[0].unsqueeze(1).narrow(2, 0, 3) + y.split({1, 5}, 2)[0];
     }},
    {"in_place_constant",
     [](auto& x) {
       auto mask = at::zeros({x.size(0), 4, 6});
       mask.select(1, 2).fill_(1), mask.slice(2, 4).add_(2);
       return x + mask;
     }},
    {"set_item",
     [](auto& x) {
       auto y = x.clone();
       y.index_put_({at::indexing::Slice(), at::indexing::Slice(), at::tensor({2})}, x.sum(2, true));
       y.index_put_({y > 0.9}, at::full({}, -1.0F));
       return y;
     }},
    {"index_put", [](auto& x) { return x.clone().index_put_({at::indexing::Slice(), at::tensor({1, 2}), at::tensor({0, 5})}, x.select(2, 1).narrow(1, 0, 2)); }},
    {"index_put_apart", [](auto& x) { return picture(x).clone().index_put_({at::indexing::Slice(), at::tensor({1, 0}), at::indexing::Slice(), at::tensor({0, 3})}, at::ones({2, 1, 3})); }},
    {"index_put_add", [](auto& x) { return at::index_put(x, c10::List<std::optional<Tensor>>({std::nullopt, at::tensor({1, 1, 2})}), at::ones({3, 6}), true); }},
    {"index_apart", [](auto& x) { return picture(x).index({at::indexing::Slice(), at::tensor({1, 0}), at::indexing::Slice(), at::tensor({0, 3})}); }},
    {"index_add", [](auto& x) { return x.index_add(1, at::tensor({3, 0, 3}), x.narrow(1, 0, 3), 2); }},
    {"index_copy", [](auto& x) { return x.index_copy(2, at::tensor({5, 0}, torch::kInt64), x.narrow(2, 1, 2)); }},
    {"index_fill", [](auto& x) { return x.index_fill(2, at::tensor({5, 0}, torch::kInt64), 7); }},
    {"scatter", [](auto& x) { return at::zeros_like(x).scatter(2, whole(x).abs().clamp_max(5).narrow(2, 0, 1), x); }},
    {"scatter_value", [](auto& x) { return x.scatter(1, whole(x).abs().clamp_max(3), 2); }},
    {"scatter_add", [](auto& x) { return x.scatter_add(2, whole(x).abs().clamp_max(5), x * 2); }},
    {"scatter_most", [](auto& x) { return x.scatter_reduce(2, whole(x).abs().clamp_max(5), x.flip({1}), "amax"); }},
    {"scatter_apart",
     [](auto& x) {
       const auto to = whole(x).abs().clamp_max(3);
       const auto one = [&](const char* reduce, bool has_self) { return x.scatter_reduce(2, to, x.flip({1}), reduce, has_self); };
       return one("sum", false) + 2 * one("prod", false) + 3 * one("amax", false) + 4 * one("amin", false) + 5 * one("mean", false) + 6 * one("mean", true) +
              whole(x).scatter_reduce(2, to, whole(x.flip({1})), "amax", false);
     }},
    {"diagonal", [](auto& x) { return at::diagonal(x, 1, 1, 2) + at::diagonal(x, -1, -1, 1).sum(1, true) + at::diagonal(picture(x), 0, 1, 3).sum({1, 2}).unsqueeze(1); }},
    {"diag_embed", [](auto& x) { return at::cat({at::diag_embed(x, -2, 1, 3), at::diag_embed(x, 2, 1)}, 2); }},
    {"diagonal_in_place",
     [](auto& x) {
       auto y = x.clone();
       y.diagonal(1, 1, 2).add_(3), y.diagonal(0, 2, 1).fill_(-1);
       return y;
     }},
    {"masked_scatter", [](auto& x) { return x.masked_scatter(x > 0.2, x * 9) + x.masked_scatter(x.narrow(2, 1, 1) > 0, x + 1); }},
    {"mask_index", [](auto& x) { return x.index({at::indexing::Slice(), at::tensor({1, 0, 1, 1}, torch::kInt64) > 0}) + x.index({at::indexing::Slice(), at::eye(4, 6) > 0}).sum(1).unsqueeze(1).unsqueeze(1); }},
    {"mask_put",
     [](auto& x) {
       auto y = x.clone();
       y.index_put_({x.select(2, 0) > 0}, at::arange(6.0F));
       y.index_put_({at::indexing::Slice(), x.select(2, 1).select(0, 0) * 0 + at::arange(4) > 1}, at::full({}, 5.0F));
       return y.index_put_({at::indexing::Slice(), at::eye(4, 6) > 0}, at::arange(4.0F));
     }},
    {"sort", [](auto& x) { return std::get<0>(x.sort(1, true)) + std::get<1>(x.sort(2)); }},
    {"argsort", [](auto& x) { return x.round().argsort(true, 2) + x.round().argsort(true, 1, true); }},
    {"bucketize", [](auto& x) { return at::bucketize(x.mul(4).round(), at::arange(-3.0F, 3.0F)) * 10 + at::bucketize(x.mul(4).round(), at::arange(-3.0F, 3.0F), false, true); }},
    {"bucketize_nan", [](auto& x) { return at::bucketize(with_nan(x), at::arange(-3.0F, 3.0F)) * 10 + at::bucketize(with_nan(x), at::arange(-3.0F, 3.0F), false, true); }},
    {"searchsorted", [](auto& x) { return at::searchsorted(std::get<0>(x.sort()), x.flip({1}), false, true); }},
    {"one_hot", [](auto& x) { return at::one_hot(whole(x).abs(), 9); }},
    {"cdist", [](auto& x) { return at::cdist(x, x + 1) + at::cdist(x, x + 1, 1) + at::cdist(x, x + 1, 3); }},
    {"pixel_unshuffle", [](auto& x) { return at::pixel_unshuffle(x.unsqueeze(1), 2); }},
    {"im2col", [](auto& x) { return at::im2col(picture(x), {2, 3}, {1, 1}, {1, 0}, {1, 2}); }},
    {"im2col_dilated", [](auto& x) { return at::im2col(picture(x), {2, 2}, {2, 3}, {0, 1}, {1, 1}); }},
    {"col2im", [](auto& x) { return at::col2im(x, {3, 4}, {2, 2}, {1, 1}, {0, 0}, {1, 1}); }},
    {"col2im_double", [](auto& x) { return at::col2im(x.to(torch::kFloat64), {3, 4}, {2, 2}, {1, 1}, {0, 0}, {1, 1}); }},
    {"unfold", [](auto& x) { return x.unfold(1, 2, 1).unfold(2, 3, 2); }},
    {"adaptive_uneven", [](auto& x) { return at::adaptive_avg_pool2d(picture(x), {2, 3}); }},
    {"adaptive_one_axis", [](auto& x) { return at::adaptive_avg_pool1d(x, 4); }},
    {"adaptive_max", [](auto& x) { return std::get<0>(at::adaptive_max_pool2d(picture(x), {2, 3})) + std::get<0>(at::adaptive_max_pool1d(x, 4)).sum(); }},
    {"adaptive_max_places", [](auto& x) { return std::get<1>(at::adaptive_max_pool2d(picture(x), {2, 3})); }},
    {"max_pool_places", [](auto& x) { return std::get<1>(at::max_pool2d_with_indices(picture(x), 2, 1, 1)); }},
    {"max_unpool",
     [](auto& x) {
       const auto [most, places] = at::max_pool2d_with_indices(picture(x).narrow(2, 0, 2), 2, 2);
       return at::max_unpool2d(most, places, {2, 4});
     }},
    {"grid_sample", [](auto& x) { return at::grid_sampler(picture(x), x.reshape({-1, 3, 4, 2}) * 1.3, 0, 0, false); }},
    {"grid_sample_border", [](auto& x) { return at::grid_sampler(picture(x), x.reshape({-1, 3, 4, 2}) * 1.3, 2, 1, true); }},
    {"grid_sample_reflect", [](auto& x) { return at::grid_sampler(picture(x), x.reshape({-1, 3, 4, 2}) * 1.3, 1, 2, false); }},
    {"affine_grid", [](auto& x) { return at::affine_grid_generator(x.flatten(1).narrow(1, 0, 6).reshape({-1, 2, 3}), {x.size(0), 2, 3, 5}, false); }},
    {"affine_grid_space", [](auto& x) { return at::affine_grid_generator(x.flatten(1).narrow(1, 0, 12).reshape({-1, 3, 4}), {x.size(0), 2, 3, 2, 5}, true); }},
    {"fft", [](auto& x) { return at::real(at::fft_fft2(x)) + at::imag(at::fft_fftn(x, {}, at::IntArrayRef{1})); }},
    {"ifft", [](auto& x) { return at::abs(at::fft_ifft(x.to(torch::kFloat64), 9, 1, "ortho")); }},
    {"rfft", [](auto& x) { return at::view_as_real(at::fft_rfft(x)) + at::abs(at::fft_rfft2(x).add(1).div(2)).select(2, 1).unsqueeze(2).unsqueeze(3); }},
    {"rfft_back",
     [](auto& x) {
       const auto weight = at::view_as_complex(at::arange(32.0F).sin().reshape({4, 4, 2}));
       return at::fft_irfft2(at::fft_rfft2(x, {}, at::IntArrayRef{1, 2}, "ortho") * weight, at::IntArrayRef{4, 6}, at::IntArrayRef{1, 2}, "ortho") +
              at::fft_irfft(at::fft_rfft(x, 5) * 2, 5, -1, "forward").sum(2, true);
     }},
    {"stft",
     [](auto& x) {
       const auto spectrum = at::stft(x.flatten(1), 8, 3, 6, at::hann_window(6), true, "reflect", false, {}, true);
       return at::abs(at::fft_fftshift(spectrum, 1)) + at::view_as_real(spectrum.conj().resolve_conj()).sum(3);
     }},
    {"cells",
     [](auto& x) {
       const auto weight = [](int rows, int width) { return at::linspace(-1, 1, rows * width).reshape({rows, width}); };
       const auto y = x.select(1, 0), state = x.select(1, 1).narrow(1, 0, 3);
       const auto [h, c] = at::lstm_cell(y, {state, state * 2}, weight(12, 6), weight(12, 3), at::ones({12}), at::ones({12}));
       return h + c + at::gru_cell(y, state, weight(9, 6), weight(9, 3)) + at::rnn_tanh_cell(y, state, weight(3, 6), weight(3, 3));
     }},
    {"lstm_projected",
     [](auto& x) {
       const auto weight = [](int rows, int width) { return at::linspace(-1, 1, rows * width).reshape({rows, width}); };
       std::vector<Tensor> weights;
       for (int i = 0; i < 2; ++i) weights.insert(weights.end(), {weight(12, 6), weight(12, 2), weight(2, 3)});
       const auto h = at::zeros({2, x.size(0), 2}), c = at::zeros({2, x.size(0), 3});
       return std::get<0>(at::lstm(x, {h, c}, weights, false, 1, 0, false, true, true));
     }},
    {"weight_norm", [](auto& x) { return at::linear(x, at::_weight_norm(at::arange(12.0F).sin().reshape({2, 6}), at::ones({2, 1}))); }},
    {"isnan", [](auto& x) { return at::where((x / 0.0).isnan(), x, x * 2); }},
};

}  // namespace

TEST_CASE("ONNX: operators compute what LibTorch computes") {
  const TemporaryFolder folder;
  torch::nn::Linear module(1, 1);
  module->eval();
  std::string refused;
  for (const auto& [name, forward] : cases) {
    vernier::Tensors all;
    try {
      const auto model = [forward](const auto& inputs) { return forward(inputs[0]); };
      vernier::export_onnx(vernier::ExportedModel{*module, model, {numbers(2)}},
                           folder / (std::string(name) + ".onnx"));
      for (const std::int64_t samples : {1, 7}) {
        const auto label = std::to_string(samples);
        all["input/" + label] = numbers(samples);
        all["output/" + label] = forward(numbers(samples)).contiguous();
      }
      vernier::save_safetensors(folder / (std::string(name) + ".safetensors"), all, {});
    } catch (const std::exception& error) {
      refused += std::string(name) + ": " + std::string(error.what()).substr(0, 150) + "\n";
    }
  }
  CHECK_MESSAGE(refused.empty(), refused);
  if (!has_python("onnxruntime")) return;
  std::string out;
  CHECK_MESSAGE(python(VERNIER_SOURCE_DIR "/tests/support/run_onnx.py .", folder.path(), out) == 0, out);
}

TEST_CASE("ONNX: an option that it lacks is refused by name") {
  const std::vector<std::pair<const char*, Tensor (*)(const Tensor& x)>> refused = {
      {"it computes means of integers",
       [](auto& x) { return whole(x).scatter_reduce(1, whole(x).abs().clamp_max(3), whole(x), "mean"); }},
      {"it writes another number to each place of a mask",
       [](auto& x) { return x.clone().index_put_({x > -2}, x.flatten()); }},
      {"it computes with complex numbers", [](auto& x) { return at::abs(at::exp(at::fft_fft(x))); }},
      {"no complex numbers; take and return torch.view_as_real()", [](auto& x) { return at::fft_fft(x); }},
      {"there is no rule that writes by ONNX: linalg_matrix_exp",
       [](auto& x) { return at::matrix_exp(x.narrow(2, 0, 4)); }},
      {"it reads the bits in another dtype; take --format pt2", [](auto& x) { return x.view(torch::kInt32); }},
      {"it changes a tensor in place after it took a view of it",
       [](auto& x) {
         auto y = x.clone();
         y.view(torch::kInt32).add_(1);
         return y;
       }},
      {"its decimals are not 0", [](auto& x) { return x.round(1); }},
      {"its scale_factor 1.3 makes 3 of 3",
       [](auto& x) { return at::upsample_bicubic2d(picture(x), {}, false, factors); }},
  };
  const TemporaryFolder folder;
  torch::nn::Linear module(1, 1);
  module->eval();
  for (const auto& [error, forward] : refused) {
    const auto model = [forward](const auto& inputs) { return forward(inputs[0]); };
    const auto thrown = thrown_by([&] {
      vernier::export_onnx(vernier::ExportedModel{*module, model, {numbers(2)}}, folder / "a.onnx");
    });
    CHECK_MESSAGE(thrown.text.find(error) != std::string::npos, thrown.text);
  }
  const auto sum = [](const auto& inputs) { return inputs[0] + inputs[1]; };
  const vernier::ExportedModel twice{*module, sum, {numbers(2), numbers(2)}, {"column", "column"}};
  CHECK(thrown_by([&] { vernier::export_onnx(twice, folder / "a.onnx"); }).text == "two inputs have the name 'column'");
}

}  // namespace onnx_operators_test
