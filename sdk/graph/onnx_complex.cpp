// Rules of complex numbers and of Fourier transforms. ONNX has no complex numbers: a last dimension has the real and
// the imaginary part of each.
#include <ATen/ops/arange.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/tensor.h>
#include <ATen/ops/where.h>

#include <cmath>

#include "onnx_rules.h"

namespace vernier::graph {

namespace {

// 0: the real part; 1: the imaginary one.
Name part(Call& call, const Name& x, int which) {
  return call.onnx.add("Gather", {x, call.onnx.number(which, torch::kInt64)}, {{"axis", std::int64_t{-1}}});
}

Name paired(Call& call, const Name& real, const Name& imaginary) {
  const auto last = call.onnx.ints({-1});
  return call.onnx.add("Concat", {op(call, "Unsqueeze", {real, last}), op(call, "Unsqueeze", {imaginary, last})},
                       {{"axis", std::int64_t{-1}}});
}

void as_real(Call& call) {
  call.set(call.name("self"));
}

void conjugate(Call& call) {
  call.set(op(call, "Mul", {call.name("self"), call.onnx.tensor(at::tensor({1, -1}).to(real_dtype(call)))}));
}

constexpr double scale_of(std::int64_t normalization, double numbers) {
  return normalization == 0 ? 1 : normalization == 1 ? 1 / std::sqrt(numbers) : 1 / numbers;
}

// A transform along some axes: each is one of ONNX, whose inverse is divided by the numbers of the axis.
class Transform {
 public:
  explicit Transform(Call& call) : call_(call), axes_(call.dimensions("dim", call.value("self").sizes.size())) {}

  Name along(const Name& x, std::int64_t axis, bool is_forward, bool is_onesided = false) {
    const bool is_last_of_half = call_.has("last_dim_size") && axis == axes_.back();
    const auto size = is_last_of_half ? Size{call_.integer("last_dim_size")}
                                      : call_.value("self").sizes.at(static_cast<std::size_t>(axis));
    if (size.is_per_sample) call_.refuse("it is over the samples");
    numbers_ *= static_cast<double>(size.number);
    if (!is_forward) divided_ = numbers_;
    return call_.onnx.add("DFT", {x, "", call_.onnx.number(static_cast<double>(axis), torch::kInt64)},
                          {{"inverse", std::int64_t{!is_forward}}, {"onesided", std::int64_t{is_onesided}}});
  }
  // The last axis. Along it, one half of the spectrum of real numbers gives the other.
  std::int64_t last() const { return axes_.back(); }
  const std::vector<std::int64_t>& axes() const { return axes_; }
  Name scaled(const Name& x) const {
    const auto scale = scale_of(call_.integer("normalization"), numbers_) * divided_;
    return scale == 1 ? x : op(call_, "Mul", {x, call_.onnx.number(scale, real_dtype(call_))});
  }

 private:
  Call& call_;
  std::vector<std::int64_t> axes_;
  double numbers_ = 1, divided_ = 1;
};

void fft(Call& call) {
  Transform transform(call);
  auto x = call.name("self");
  for (const auto axis : transform.axes()) x = transform.along(x, axis, call.flag("forward"));
  call.set(transform.scaled(x));
}

void fft_of_real(Call& call) {
  Transform transform(call);
  auto x = op(call, "Unsqueeze", {call.name("self"), call.onnx.ints({-1})});
  x = transform.along(x, transform.last(), true, call.flag("onesided"));
  for (auto axis = transform.axes().rbegin() + 1; axis != transform.axes().rend(); ++axis) {
    x = transform.along(x, *axis, true);
  }
  call.set(transform.scaled(x));
}

// The half of a spectrum becomes all of it: the other half is conjugate.
void fft_to_real(Call& call) {
  Transform transform(call);
  auto x = call.name("self");
  for (std::size_t i = 0; i + 1 < transform.axes().size(); ++i) x = transform.along(x, transform.axes()[i], false);
  const auto size = call.integer("last_dim_size"), axis = transform.last();
  const auto places = at::arange(size);
  const auto is_given = places <= size / 2;
  std::vector<std::int64_t> shape(call.value("self").sizes.size() - static_cast<std::size_t>(axis) + 1, 1);
  shape.front() = size;
  auto signs = at::ones(shape, call.dtype()).repeat_interleave(2, -1);
  signs.select(-1, 1).masked_fill_(is_given.logical_not().reshape(signs.select(-1, 1).sizes()), -1);
  const auto taken = call.onnx.tensor(at::where(is_given, places, size - places));
  x = op(call, "Mul", {call.onnx.add("Gather", {x, taken}, {{"axis", axis}}), call.onnx.tensor(signs)});
  x = transform.along(x, axis, false);
  call.set(transform.scaled(part(call, x, 0)));
}

}  // namespace

Name complex_product(Call& call) {
  const auto dtype = call.dtype(), real = real_dtype(call);
  const auto is_complex = [&](const char* of) {
    return call.at(of).kind == Argument::Kind::value && c10::isComplexType(call.value(of).dtype());
  };
  for (const auto& [one, other] : {std::pair{"self", "other"}, std::pair{"other", "self"}}) {
    if (is_complex(one)) continue;
    const auto factor = op(call, "Unsqueeze", {call.name(one, real), call.onnx.ints({-1})});
    return op(call, "Mul", {call.name(other, dtype), factor});
  }
  const auto x = call.name("self", dtype), y = call.name("other", dtype);
  const auto a = part(call, x, 0), b = part(call, x, 1), c = part(call, y, 0), d = part(call, y, 1);
  const auto product = [&](const Name& one, const Name& other) { return op(call, "Mul", {one, other}); };
  return paired(call, op(call, "Sub", {product(a, c), product(b, d)}), op(call, "Add", {product(a, d), product(b, c)}));
}

bool takes_complex(const std::string& rule) {
  static const std::set<std::string> names = {"view_as_real",
                                              "view_as_complex",
                                              "_conj",

                                              "abs",
                                              "_fft_c2c",
                                              "_fft_r2c",
                                              "_fft_c2r",
                                              "mul",
                                              "div",
                                              "add",
                                              "sub",
                                              "neg",
                                              "sum",
                                              "mean",
                                              "reshape",
                                              "view",
                                              "flatten",
                                              "squeeze",
                                              "unsqueeze",
                                              "unflatten",
                                              "select",
                                              "slice",
                                              "transpose",
                                              "permute",
                                              "t",
                                              "expand",
                                              "cat",
                                              "stack",
                                              "split",
                                              "split_with_sizes",
                                              "unbind",
                                              "roll",
                                              "flip",
                                              "clone",
                                              "detach",
                                              "alias",
                                              "contiguous",
                                              "to",
                                              "index_select",
                                              "_to_copy",
                                              "_unsafe_view"};
  return names.contains(rule);
}

void add_complex_rules(Rules& rules) {
  rules.insert({{"view_as_real", as_real},
                {"view_as_complex", as_real},
                {"_conj", conjugate},
                {"_fft_c2c", fft},
                {"_fft_r2c", fft_of_real},
                {"_fft_c2r", fft_to_real}});
}

}  // namespace vernier::graph
