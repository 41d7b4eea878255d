#include <ATen/ScalarOps.h>
#include <ATen/core/Reduction.h>
#include <dlfcn.h>

#include <algorithm>
#include <array>
#include <set>
#include <string_view>
#include <unordered_map>

#include "bounds.h"
#include "rules.h"

namespace vernier::compile {

namespace {

// Multiplications from which on LibTorch's product is called.
constexpr std::int64_t large_product = 1 << 20;

// value: of a, b, c, which are the first `count` arguments.
Rule elements(std::size_t count, std::string value) {
  return [=](const Given& given) {
    std::vector<at::Tensor> from;
    for (std::size_t i = 0; i < count; ++i) from.push_back(given.operand(i));
    const auto type = type_of(given.result().scalar_type());
    for (const auto& one : from) {
      if (!one.defined()) return std::string();
    }
    if (type == "bool") return std::string();
    return element_by_element(given.memory, given.result(), from, value);
  };
}

Rule filled_with(double number) {
  return [=](const Given& given) {
    const auto to = given.result();
    return element_by_element(given.memory, to, {}, constant(number, type_of(to.scalar_type())));
  };
}

// The rule of a plus or minus alpha * b. alpha: the place of this factor among the arguments.
Rule sum_of(const char* sign) {
  return [=](const Given& given) {
    const auto alpha = given.number_of(2);
    if (alpha.empty() || given.result().scalar_type() == at::kBool) return std::string();
    const auto scaled = given.value(2).toScalar().toDouble() == 1 ? "b" : alpha + " * b";
    return element_by_element(given.memory, given.result(), {given.tensor(0), given.operand(1)},
                              c10::str("a ", sign, " ", scaled));
  };
}

std::string copied(const Given& given) {
  const auto to = given.result();
  const auto from = given.tensor(given.call.op.schema().name() == "aten::copy_" ? 1 : 0);
  if (to.scalar_type() == at::kBool && from.scalar_type() != at::kBool) return "";
  return element_by_element(given.memory, to, {from}, "a");
}

std::string threshold_backward(const Given& given) {
  const auto limit = given.number_of(2);
  if (limit.empty()) return "";
  return element_by_element(given.memory, given.result(), {given.tensor(0), given.tensor(1)},
                            "b <= " + limit + " ? 0 : a");
}

std::string power(const Given& given) {
  if (!given.value(1).isScalar()) return "";  // 2 to the power of a tensor
  const auto exponent = given.value(1).toScalar().toDouble();
  static const std::map<double, std::string> values = {{2, "a * a"},  {3, "a * a * a"}, {0.5, "root_of(a)"},
                                                       {-1, "1 / a"}, {1, "a"},         {-0.5, "1 / root_of(a)"}};
  const auto found = values.find(exponent);
  if (found == values.end()) return "";
  return element_by_element(given.memory, given.result(), {given.tensor(0)}, found->second);
}

// True if sgemm_ can read a matrix with these strides: the elements of each row, or of each column, are adjacent, and
// no two rows or columns overlap, as those of an expanded or unfolded tensor do.
bool is_for_blas(const at::Tensor& a) {
  return std::ranges::any_of(std::array{0, 1}, [&](int dim) {
    const int other = 1 - dim;
    return (a.size(dim) == 1 || a.stride(dim) == 1) && (a.size(other) == 1 || a.stride(other) >= a.size(dim));
  });
}

// to: added to the product; undefined: nothing is.
std::string product(const Given& given, at::Tensor a, at::Tensor b, at::Tensor to, at::Tensor c) {
  if (!is_float(a) || !is_float(b) || !is_float(c) || a.dim() != 2 || a.numel() == 0 || c.numel() == 0) return "";
  if (c.stride(1) != 1) {  // the columns of c are next to each other
    std::swap(a, b);
    a = a.t();
    b = b.t();
    c = c.t();
    if (to.defined()) to = to.expand(c.t().sizes()).t();
  }
  if (c.stride(1) != 1 && c.size(1) != 1) return "";
  if (to.defined()) {
    to = to.expand(c.sizes());
    if (to.stride(1) != 1 && c.size(1) != 1) return "";
  }
  const bool is_large = a.size(0) * a.size(1) * b.size(1) > large_product;
  if (is_large && !(has_large_products() && is_for_blas(a) && is_for_blas(b))) return "";
  return c10::str(is_large ? "large_product<" : "product<", a.size(0), ", ", b.size(1), ", ", a.size(1), ", ",
                  a.stride(0), ", ", a.stride(1), ", ", b.stride(0), ", ", b.stride(1), ", ", c.stride(0), ", ",
                  to.defined() ? to.stride(0) : 0, ">(", given.address(c), ", ", given.address(a), ", ",
                  given.address(b), ", ", given.address(to), ");");
}

std::string mm(const Given& given) {
  return product(given, given.tensor(0), given.tensor(1), {}, given.result());
}

std::string addmm(const Given& given) {
  if (given.value(3).toScalar().toDouble() != 1 || given.value(4).toScalar().toDouble() != 1) return "";
  return product(given, given.tensor(1), given.tensor(2), given.tensor(0), given.result());
}

std::string bmm(const Given& given) {
  const auto a = given.tensor(0), b = given.tensor(1), c = given.result();
  if (!is_float(a) || a.size(0) > 64) return "";
  std::string text;
  for (std::int64_t i = 0; i < c.size(0); ++i) {
    const auto one = product(given, a.select(0, i), b.select(0, i), {}, c.select(0, i));
    if (one.empty()) return "";
    text += one + "\n";
  }
  return text;
}

std::vector<std::int64_t> dims_of(const c10::IValue& value) {
  return value.isIntList() ? value.toIntVector() : std::vector<std::int64_t>();
}

std::string sum(const Given& given) {
  const bool is_whole = given.call.op.schema().overload_name().empty();
  return sums(given.memory, given.result(), given.tensor(0),
              is_whole ? std::vector<std::int64_t>() : dims_of(given.value(1)), 1);
}

std::string mean(const Given& given) {
  const bool is_whole = given.call.op.schema().overload_name().empty();
  const auto share = static_cast<double>(given.result().numel()) / static_cast<double>(given.tensor(0).numel());
  return sums(given.memory, given.result(), given.tensor(0),
              is_whole ? std::vector<std::int64_t>() : dims_of(given.value(1)), share);
}

std::string cat(const Given& given) {
  const auto to = given.result();
  auto dim = given.value(1).toInt();
  dim = dim < 0 ? dim + to.dim() : dim;
  std::string text;
  std::int64_t start = 0;
  for (const at::Tensor& part : given.value(0).toTensorVector()) {
    if (part.dim() != to.dim()) return "";
    const auto one = element_by_element(given.memory, to.narrow(dim, start, part.size(dim)), {part}, "a");
    if (one.empty()) return "";
    text += "{ " + one + " }\n";
    start += part.size(dim);
  }
  return text;
}

std::string stack(const Given& given) {
  const auto to = given.result();
  auto dim = given.value(1).toInt();
  dim = dim < 0 ? dim + to.dim() : dim;
  std::string text;
  std::int64_t place = 0;
  for (const at::Tensor& part : given.value(0).toTensorVector()) {
    const auto one = element_by_element(given.memory, to.select(dim, place++), {part}, "a");
    if (one.empty()) return "";
    text += "{ " + one + " }\n";
  }
  return text;
}

// Zeros, but for the part of the result that forward took.
std::string in_zeros(const Given& given, const at::Tensor& part) {
  const auto zeros = element_by_element(given.memory, given.result(), {}, "0");
  const auto copy = element_by_element(given.memory, part, {given.tensor(0)}, "a");
  return zeros.empty() || copy.empty() ? "" : "{ " + zeros + " }\n" + copy;
}

std::string slice_backward(const Given& given) {
  return in_zeros(given, given.result().slice(given.value(2).toInt(), given.value(3).toInt(), given.value(4).toInt(),
                                              given.value(5).toInt()));
}

std::string select_backward(const Given& given) {
  return in_zeros(given, given.result().select(given.value(2).toInt(), given.value(3).toInt()));
}

Rule if_tanh(std::size_t argument, Rule rule) {  // at::gelu by tanh
  return
      [=](const Given& given) { return given.value(argument).toStringRef() == "tanh" ? rule(given) : std::string(); };
}

// The mean or the sum of squares of differences.
std::string mse_loss(const Given& given) {
  const auto reduction = given.value(2).toInt();
  const auto a = given.tensor(0), b = given.tensor(1), to = given.result();
  const auto type = type_of(to.scalar_type());
  const bool is_float = to.is_floating_point() && !type.empty() && a.scalar_type() == to.scalar_type();
  if (!is_float || !a.is_contiguous() || !b.is_contiguous() || a.sizes() != b.sizes() ||
      b.scalar_type() != a.scalar_type() || reduction == at::Reduction::None) {
    return "";
  }
  return c10::str("const auto *a = ", given.address(a), ", *b = ", given.address(b), "; double sum = 0;\n",
                  "SUM(omp simd reduction(+ : sum)) (long i = 0; i < ", a.numel(),
                  "; ++i) sum += (a[i] - b[i]) * (a[i] - b[i]);\n*", given.address(to), " = static_cast<", type,
                  ">(sum", reduction == at::Reduction::Mean ? c10::str(" / ", a.numel()) : "", ");");
}

std::string mse_loss_backward(const Given& given) {
  const auto reduction = given.value(3).toInt();
  if (reduction == at::Reduction::None) return "";
  const auto to = given.result();
  const double factor = reduction == at::Reduction::Mean ? 2.0 / static_cast<double>(given.tensor(1).numel()) : 2.0;
  return element_by_element(given.memory, to, {given.tensor(0), given.tensor(1), given.tensor(2)},
                            constant(factor, type_of(to.scalar_type())) + " * a * (b - c)");
}

std::string cross_entropy(const Given& given) {
  const auto x = given.tensor(0), target = given.tensor(1);
  if (!is_plain(x) || !is_plain(target, at::kLong)) return "";
  return given.or_call(c10::str("cross_entropy<", x.size(0), ", ", x.size(1), ">(", given.address(x), ", ",
                                given.address(target), ", ", given.value(3).toInt(), ", ",
                                given.value(2).toInt() == at::Reduction::Mean, ", ", given.address(given.result(1)),
                                ", ", given.address(given.result(0)), ")"));
}

std::string cross_entropy_backward(const Given& given) {
  const auto slope = given.tensor(0), y = given.tensor(1), target = given.tensor(2);
  if (!is_float(slope) || !is_plain(y) || !is_plain(target, at::kLong)) return "";
  return given.or_call(c10::str("cross_entropy_backward<", y.size(0), ", ", y.size(1), ">(", given.address(slope), ", ",
                                given.address(y), ", ", given.address(target), ", ", given.value(4).toInt(), ", ",
                                given.value(3).toInt() == at::Reduction::Mean, ", ", given.address(given.result()),
                                ")"));
}

std::string layer_norm(const Given& given) {
  const auto x = given.tensor(0), weight = given.tensor(2), bias = given.tensor(3);
  if (!is_plain(x) || dims_of(given.value(1)).size() != 1 || !is_plain_or_none(weight) || !is_plain_or_none(bias)) {
    return "";
  }
  return c10::str("layer_norm<", x.numel() / x.size(-1), ", ", x.size(-1), ">(", given.address(x), ", ",
                  given.address(weight), ", ", given.address(bias), ", ", constant(given.value(4).toDouble(), "float"),
                  ", ", given.address(given.result(0)), ", ", given.address(given.result(1)), ", ",
                  given.address(given.result(2)), ");");
}

std::string layer_norm_backward(const Given& given) {
  const auto dy = given.tensor(0), x = given.tensor(1), weight = given.tensor(5);
  if (!is_plain(dy) || !is_plain(x) || dims_of(given.value(2)).size() != 1 || !is_plain_or_none(weight)) return "";
  return c10::str("layer_norm_backward<", x.numel() / x.size(-1), ", ", x.size(-1), ">(", given.address(dy), ", ",
                  given.address(x), ", ", given.address(given.tensor(3)), ", ", given.address(given.tensor(4)), ", ",
                  given.address(weight), ", ", given.address(given.result(0)), ", ", given.address(given.result(1)),
                  ", ", given.address(given.result(2)), ");");
}

// Copies numbers, which may have gaps, to the name `rows`.
std::string numbers_of(const Given& given, const at::Tensor& numbers) {
  if (numbers.dim() > 1 && !numbers.is_contiguous()) return "";
  const auto step = numbers.is_contiguous() ? 1 : numbers.stride(0);
  return c10::str("static long rows[", numbers.numel(), "];\n{ const auto* const from = ", given.address(numbers),
                  "; for (long i = 0; i < ", numbers.numel(), "; ++i) rows[i] = from[i * ", step, "]; }\n");
}

std::string chosen(const Given& given, const at::Tensor& from, const at::Tensor& numbers) {
  const auto to = given.result();
  if (!is_plain(from) || !is_plain(to) || from.dim() == 0 || numbers.scalar_type() != at::kLong || to.numel() == 0) {
    return "";
  }
  const auto rows = numbers_of(given, numbers);
  if (rows.empty()) return "";
  return rows + given.or_call(c10::str("choose<", numbers.numel(), ", ", from.numel() / from.size(0), ", ",
                                       from.size(0), ">(", given.address(from), ", rows, ", given.address(to), ")"));
}

std::string embedding(const Given& given) {
  return chosen(given, given.tensor(0), given.tensor(1));
}

std::string index_select(const Given& given) {
  return given.value(1).toInt() == 0 ? chosen(given, given.tensor(0), given.tensor(2)) : "";
}

std::string embedding_backward(const Given& given) {
  const auto dy = given.tensor(0), numbers = given.tensor(1), to = given.result();
  if (!is_float(dy) || !is_plain(to) || numbers.scalar_type() != at::kLong || given.value(4).toBool()) return "";
  const bool has_rows = dy.dim() == 2 && dy.stride(1) == 1;
  const auto rows = numbers_of(given, numbers);
  if (rows.empty() || !(has_rows || dy.is_contiguous())) return "";
  return rows + given.or_call(c10::str("add_chosen<", numbers.numel(), ", ", to.size(1), ", ", to.size(0), ", ",
                                       has_rows ? dy.stride(0) : to.size(1), ">(", given.address(dy), ", rows, ",
                                       given.value(3).toInt(), ", ", given.address(to), ")"));
}

const std::unordered_map<std::string_view, Rule>& rules() {
  static const std::unordered_map<std::string_view, Rule> all = {
      {"aten::zeros", filled_with(0)},
      {"aten::zeros_like", filled_with(0)},
      {"aten::new_zeros", filled_with(0)},
      {"aten::zero_", filled_with(0)},
      {"aten::ones", filled_with(1)},
      {"aten::ones_like", filled_with(1)},
      {"aten::fill_",
       [](const Given& given) {
         if (!given.value(1).isScalar()) return std::string();
         return element_by_element(given.memory, given.result(), {}, given.number_of(1));
       }},
      {"aten::copy_", copied},
      {"aten::clone", copied},
      {"aten::_to_copy", copied},
      {"aten::add", sum_of("+")},
      {"aten::add_", sum_of("+")},
      {"aten::sub", sum_of("-")},
      {"aten::sub_", sum_of("-")},
      {"aten::mul", elements(2, "a * b")},
      {"aten::mul_", elements(2, "a * b")},
      {"aten::neg", elements(1, "-a")},
      {"aten::relu", elements(1, "a < 0 ? 0 : a")},
      {"aten::relu_", elements(1, "a < 0 ? 0 : a")},
      {"aten::exp", elements(1, "exp_of(a)")},
      {"aten::tanh", elements(1, "tanh_of(a)")},
      {"aten::sigmoid", elements(1, "sigmoid_of(a)")},
      {"aten::sqrt", elements(1, "root_of(a)")},
      {"aten::tanh_", elements(1, "tanh_of(a)")},
      {"aten::sigmoid_", elements(1, "sigmoid_of(a)")},
      {"aten::silu", elements(1, "a * sigmoid_of(a)")},
      {"aten::silu_backward", elements(2, "a * silu_slope(b)")},
      {"aten::gelu", if_tanh(1, elements(1, "gelu_of(a)"))},
      {"aten::gelu_backward", if_tanh(2, elements(2, "a * gelu_slope(b)"))},
      {"aten::tanh_backward", elements(2, "a * (1 - b * b)")},
      {"aten::sigmoid_backward", elements(2, "a * (1 - b) * b")},
      {"aten::threshold_backward", threshold_backward},
      {"aten::pow", power},
      {"aten::mm", mm},
      {"aten::addmm", addmm},
      {"aten::bmm", bmm},
      {"aten::sum", sum},
      {"aten::mean", mean},
      {"aten::cat", cat},
      {"aten::stack", stack},
      {"aten::slice_backward", slice_backward},
      {"aten::select_backward", select_backward},
      {"aten::mse_loss", mse_loss},
      {"aten::mse_loss_backward", mse_loss_backward},
      {"aten::native_layer_norm", layer_norm},
      {"aten::native_layer_norm_backward", layer_norm_backward},
      {"aten::embedding", embedding},
      {"aten::embedding_dense_backward", embedding_backward},
      {"aten::index_select", index_select},
      {"aten::mkldnn_rnn_layer", recurrent},
      {"aten::mkldnn_rnn_layer_backward", recurrent_backward},
      {"vernier::cross_entropy", cross_entropy},
      {"vernier::cross_entropy_backward", cross_entropy_backward},
  };
  return all;
}

bool is_division(const Tape::Call& call) {
  const auto& schema = call.op.schema();
  return (schema.name() == "aten::div" || schema.name() == "aten::div_") &&
         (schema.overload_name() == "Tensor" || schema.overload_name() == "Scalar");
}

// Overloads with arguments of other kinds than the rules read.
bool is_of_another_kind(const Tape::Call& call) {
  static const std::array<std::string_view, 6> known = {"", "Tensor", "Scalar", "dim_IntList", "Tensor_Scalar", "dim"};
  return std::ranges::find(known, call.op.schema().overload_name()) == known.end();
}

}  // namespace

at::Tensor Given::operand(std::size_t i) const {
  return value(i).isScalar() ? at::native::wrapped_scalar_tensor(value(i).toScalar()) : tensor(i);
}

bool has_large_products() {
  static const bool has = ::dlsym(RTLD_DEFAULT, "sgemm_") != nullptr;
  return has;
}

bool is_only_memory(const Tape::Call& call) {
  const auto& schema = call.op.schema();
  static const std::array<std::string_view, 4> unfilled = {"aten::empty", "aten::empty_like", "aten::empty_strided",
                                                           "aten::new_empty"};
  if (std::ranges::find(unfilled, schema.name()) != unfilled.end()) return true;
  if (schema.is_mutable()) return false;
  std::vector<const void*> arguments;
  each_tensor(call.arguments, [&](const at::Tensor& tensor) { arguments.push_back(memory_of(tensor)); });
  bool has_results = false, are_views = true;
  each_tensor(call.results, [&](const at::Tensor& tensor) {
    const auto* memory = memory_of(tensor);
    has_results = true;
    are_views = are_views && memory != nullptr && std::ranges::find(arguments, memory) != arguments.end();
  });
  return has_results && are_views;
}

std::string statements_of(const Tape::Call& call, std::size_t number, const Memory& memory) {
  const Given given{call, number, memory};
  bool is_on_host = true;
  const auto look = [&](const at::Tensor& tensor) {
    is_on_host = is_on_host && (!tensor.defined() ||
                                (tensor.is_cpu() && tensor.has_storage() && !tensor.is_neg() && !tensor.is_conj()));
  };
  each_tensor(call.arguments, look);
  each_tensor(call.results, look);
  if (!is_on_host || is_of_another_kind(call)) return "";
  if (is_division(call)) return elements(2, "a / b")(given);
  const auto rule = rules().find(call.op.schema().name());
  return rule == rules().end() ? "" : rule->second(given);
}

Source source_of(const Calls& calls, std::size_t forward, const Memory& memory) {
  Source source{std::string(prelude) + recurrent_head, {}, 0};
  const auto begin = [&](const char* name) {
    source.text += c10::str("extern \"C\" void vernier_", name,
                            "(char* const arena, void* const* const memory, Call call, void* program) {\n");
  };
  std::vector<std::string> texts;
  std::set<const void*> of_libtorch;  // workspaces of layers with an operator that is called
  for (std::size_t i = 0; i < calls.size(); ++i) {
    texts.push_back(is_only_memory(calls[i]) ? "" : statements_of(calls[i], i, memory));
    if (texts.back().empty() && is_recurrent(calls[i])) of_libtorch.insert(memory_of(workspace_of(calls[i])));
  }
  begin("forward");
  for (std::size_t i = 0; i < calls.size(); ++i) {
    if (i == forward) {
      source.text += "}\n\n";
      begin("backward");
    }
    if (is_only_memory(calls[i])) continue;
    const auto& name = calls[i].op.schema().name();
    auto& text = texts[i];
    if (is_recurrent(calls[i]) && of_libtorch.contains(memory_of(workspace_of(calls[i])))) text.clear();
    if (text.empty()) {
      source.called.insert(name);
      text = c10::str("call(program, ", i, ");");
    } else {
      source.written += 1;
    }
    source.text += c10::str("{  // ", name, "\n", text, "\n}\n");
  }
  source.text += "}\n";
  return source;
}

}  // namespace vernier::compile
