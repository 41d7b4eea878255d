#include "loops.h"

#include <c10/util/StringUtil.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <numeric>

namespace vernier::compile {

namespace {

// A loop: its count, and for each operand the distance of its elements.
struct Dim {
  std::int64_t count;
  std::vector<std::int64_t> steps;
};

std::vector<std::int64_t> steps_of(const at::Tensor& tensor, std::int64_t dims) {
  std::vector<std::int64_t> steps(static_cast<std::size_t>(dims - tensor.dim()), 0);
  for (std::int64_t i = 0; i < tensor.dim(); ++i) steps.push_back(tensor.size(i) == 1 ? 0 : tensor.stride(i));
  return steps;
}

// The loops over operands, which are broadcast to the sizes of the first: outer ones first, those of one element left
// out, and those joined that follow each other in every memory.
std::vector<Dim> loops_over(at::IntArrayRef sizes, const std::vector<at::Tensor>& operands) {
  const auto dims = static_cast<std::int64_t>(sizes.size());
  std::vector<Dim> all;
  std::vector<std::vector<std::int64_t>> steps;
  for (const auto& operand : operands) steps.push_back(steps_of(operand, dims));
  for (std::size_t i = 0; i < sizes.size(); ++i) {
    if (sizes[i] == 1) continue;
    Dim dim{sizes[i], {}};
    for (const auto& of_one : steps) dim.steps.push_back(of_one[i]);
    all.push_back(std::move(dim));
  }
  std::ranges::stable_sort(all, std::greater(), [](const Dim& dim) { return dim.steps[0]; });
  std::vector<Dim> joined;
  for (auto& dim : all) {
    const auto follows = [&](const Dim& outer) {
      for (std::size_t i = 0; i < dim.steps.size(); ++i) {
        if (outer.steps[i] != dim.steps[i] * dim.count) return false;
      }
      return true;
    };
    if (!joined.empty() && follows(joined.back())) {
      joined.back() = {joined.back().count * dim.count, std::move(dim.steps)};
    } else {
      joined.push_back(std::move(dim));
    }
  }
  return joined;
}

std::string index_of(const std::vector<Dim>& dims, std::size_t operand) {
  std::string text;
  for (std::size_t i = 0; i < dims.size(); ++i) {
    if (dims[i].steps[operand] == 0) continue;
    text += c10::str(text.empty() ? "" : " + ", "i", i, " * ", dims[i].steps[operand]);
  }
  return text.empty() ? "0" : text;
}

std::string heads_of(const std::vector<Dim>& dims, std::size_t from, std::size_t to, bool is_innermost) {
  std::string text;
  for (std::size_t i = from; i < to; ++i) {
    const bool is_last = is_innermost && i + 1 == to;
    text += c10::str(is_last ? "LOOP" : "for", " (long i", i, " = 0; i", i, " < ", dims[i].count, "; ++i", i, ") ");
  }
  return text;
}

bool is_wrapped(const at::Tensor& tensor) {
  return tensor.dim() == 0 && tensor.unsafeGetTensorImpl()->is_wrapped_number();
}

}  // namespace

std::string constant(double number, const std::string& type) {
  if (!std::isfinite(number)) return "";
  std::array<char, 40> text{};
  std::snprintf(text.data(), text.size(), "%a", number);
  return c10::str("static_cast<", type, ">(", text.data(), ")");
}

std::string element_by_element(const Memory& memory, const at::Tensor& to, const std::vector<at::Tensor>& from,
                               const std::string& value, std::string type) {
  if (type.empty()) type = type_of(to.scalar_type());
  if (!std::ranges::all_of(from, &at::Tensor::defined)) return "";
  if (type.empty() || value.empty() || type_of(to.scalar_type()).empty()) return "";
  if (to.numel() == 0) return ";";
  std::vector<at::Tensor> operands = {to};
  operands.insert(operands.end(), from.begin(), from.end());
  const auto dims = loops_over(to.sizes(), operands);
  std::string text = c10::str("auto* const y = ", memory.address(to), ";\n");
  std::string body;
  for (std::size_t i = 0; i < from.size(); ++i) {
    const char name = static_cast<char>('a' + i);
    if (type_of(from[i].scalar_type()).empty()) return "";
    if (is_wrapped(from[i])) {
      const auto number = constant(from[i].item().toDouble(), type);
      if (number.empty()) return "";
      body += c10::str("const ", type, " ", name, " = ", number, "; ");
      continue;
    }
    text += c10::str("const auto* const x", i, " = ", memory.address(from[i]), ";\n");
    body += c10::str("const auto ", name, " = static_cast<", type, ">(x", i, "[", index_of(dims, i + 1), "]); ");
  }
  return text + heads_of(dims, 0, dims.size(), true) + "{ " + body + "y[" + index_of(dims, 0) + "] = " + value + "; }";
}

std::string sums(const Memory& memory, const at::Tensor& to, const at::Tensor& from, std::vector<std::int64_t> dims,
                 double scale) {
  const auto type = type_of(to.scalar_type());
  if ((type != "float" && type != "double") || from.scalar_type() != to.scalar_type() || from.numel() == 0) return "";
  if (dims.empty()) {
    dims.resize(static_cast<std::size_t>(from.dim()));
    std::iota(dims.begin(), dims.end(), 0);
  }
  for (auto& dim : dims) dim = dim < 0 ? dim + from.dim() : dim;
  const auto is_summed = [&](std::int64_t dim) { return std::ranges::find(dims, dim) != dims.end(); };
  std::vector<std::int64_t> kept, summed;
  for (std::int64_t i = 0; i < from.dim(); ++i) (is_summed(i) ? summed : kept).push_back(i);
  // As tensors of the same memory: those of one sum, with their first elements, and the sums.
  std::vector<std::int64_t> sizes, strides, to_sizes, to_strides;
  for (const auto dim : kept) {
    sizes.push_back(from.size(dim));
    strides.push_back(from.stride(dim));
  }
  auto flat = to;
  if (to.dim() == from.dim()) {  // keepdim
    for (const auto dim : kept) to_strides.push_back(to.stride(dim));
    flat = to.as_strided(sizes, to_strides, to.storage_offset());
  }
  const auto outer = loops_over(sizes, {flat, from.as_strided(sizes, strides, from.storage_offset())});
  std::vector<std::int64_t> inner_sizes, inner_strides;
  for (const auto dim : summed) {
    inner_sizes.push_back(from.size(dim));
    inner_strides.push_back(from.stride(dim));
  }
  const auto inner = loops_over(inner_sizes, {from.as_strided(inner_sizes, inner_strides, from.storage_offset())});
  std::string inner_index = "0", inner_heads;
  for (std::size_t i = 0; i < inner.size(); ++i) {
    inner_index += c10::str(" + j", i, " * ", inner[i].steps[0]);
    inner_heads += c10::str("for (long j", i, " = 0; j", i, " < ", inner[i].count, "; ++j", i, ") ");
  }
  auto text =
      c10::str("auto* const y = ", memory.address(to), ";\nconst auto* const x = ", memory.address(from), ";\n");
  const auto out = index_of(outer, 0), in = index_of(outer, 1);
  const auto factor = scale == 1 ? "" : " * " + constant(scale, type);
  const bool is_by_rows = !outer.empty() && (inner.empty() || outer.back().steps[1] < inner.back().steps[0]);
  if (is_by_rows) {  // the sums are next to each other, as their summands are
    const auto heads = heads_of(outer, 0, outer.size(), true);
    text += c10::str(heads, "y[", out, "] = 0;\n", inner_heads, heads, "y[", out, "] += x[", in, " + ", inner_index,
                     "];\n");
    if (!factor.empty()) text += c10::str(heads, "y[", out, "] *= ", factor.substr(3), ";\n");
    return text;
  }
  // The sum of all numbers is made in float64, because a loss may be the mean of many.
  const std::string wide = outer.empty() ? "double" : type;
  auto last = inner_heads;
  if (const auto place = last.rfind("for ("); place != std::string::npos) {
    last = last.substr(0, place) + "SUM(omp simd reduction(+ : sum)) " + last.substr(place + 4);
  }
  return text + c10::str(heads_of(outer, 0, outer.size(), false), "{ ", wide, " sum = 0; ", last, "sum += x[", in,
                         " + ", inner_index, "]; y[", out, "] = static_cast<", type, ">(sum)", factor, "; }");
}

}  // namespace vernier::compile
