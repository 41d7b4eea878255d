#include "flops.h"

#include <ATen/core/grad_mode.h>
#include <ATen/core/ivalue.h>

#include <algorithm>
#include <string>

namespace vernier {

namespace {

double count(const torch::Tensor& tensor) {
  return static_cast<double>(tensor.numel());
}

double length(const torch::Tensor& tensor, std::int64_t dimension) {
  return static_cast<double>(tensor.size(dimension));
}

// The gradient of each operand is a product of the same size.
Flops product(double operations, const torch::Tensor& a, const torch::Tensor& b) {
  return {operations, operations * (double(a.requires_grad()) + double(b.requires_grad()))};
}

bool is_one_of(std::string_view name, std::initializer_list<std::string_view> names) {
  return std::ranges::find(names, name) != names.end();
}

// a [..., n, k] times b [k] or [..., k, m].
Flops matrix_product(const torch::Tensor& a, const torch::Tensor& b, const torch::Tensor& result) {
  return product(2 * count(result) * length(a, -1), a, b);
}

Flops convolution(const torch::Tensor& input, const torch::Tensor& weight, const torch::Tensor& result,
                  bool is_transposed) {
  const auto& positions = is_transposed ? input : result;
  return product(2 * count(positions) * count(weight) / length(weight, 0), input, weight);
}

// Scores are a product of query and key, results one of scores and value. A causal mask is not subtracted, as is usual.
Flops attention(const Values& arguments, const torch::Tensor& result) {
  const auto query = arguments[0].toTensor(), key = arguments[1].toTensor(), value = arguments[2].toTensor();
  const auto scores = product(2 * count(query) * length(key, -2), query, key);
  const bool have_gradient = query.requires_grad() || key.requires_grad();
  const auto results = 2 * count(result) * length(key, -2);
  return {scores.forward + results,
          scores.backward + results * (double(have_gradient) + double(value.requires_grad()))};
}

// Each row of the input, a sample at a moment, meets every matrix once. Backward is that of layers whose inputs and
// states need gradients.
Flops recurrent(const torch::Tensor& input, const std::vector<torch::Tensor>& weights) {
  double numbers = 0;
  bool has_gradient = input.requires_grad();
  for (const auto& weight : weights) {
    if (weight.dim() == 2) numbers += count(weight);
    has_gradient |= weight.requires_grad();
  }
  const double forward = 2 * count(input) / length(input, -1) * numbers;
  return {forward, has_gradient ? 2 * forward : 0};
}

std::vector<torch::Tensor> all_tensors(const Values& arguments, std::size_t from) {
  std::vector<torch::Tensor> all;
  for (auto i = from; i < arguments.size(); ++i) {
    if (arguments[i].isTensor() && arguments[i].toTensor().defined()) all.push_back(arguments[i].toTensor());
  }
  return all;
}

// An index of einsum by its letter; those of "..." by their place from the right.
std::map<std::string, double> sizes_of(std::string_view indices, const torch::Tensor& tensor) {
  std::map<std::string, double> sizes;
  const auto letters = static_cast<std::int64_t>(std::ranges::count_if(indices, [](char c) { return c != '.'; }));
  std::int64_t dimension = 0;
  for (std::size_t i = 0; i < indices.size(); ++i) {
    if (indices[i] != '.') {
      sizes[std::string(1, indices[i])] = length(tensor, dimension++);
      continue;
    }
    for (auto rest = tensor.dim() - letters; rest > 0; --rest)
      sizes[std::to_string(rest)] = length(tensor, dimension++);
    i += 2;
  }
  return sizes;
}

// Operands are multiplied from the left. Two are a product where they share an index that the result lacks; an index
// that one of them has alone and the result lacks is summed before.
Flops einsum(const std::string& equation, const std::vector<torch::Tensor>& operands) {
  std::string text;
  std::ranges::copy_if(equation, std::back_inserter(text), [](char c) { return c != ' '; });
  const auto arrow = text.find("->");
  const auto inputs = text.substr(0, arrow);
  std::vector<std::map<std::string, double>> all;
  std::size_t start = 0;
  for (const auto& operand : operands) {
    const auto end = std::min(inputs.find(',', start), inputs.size());
    all.push_back(sizes_of(std::string_view(inputs).substr(start, end - start), operand));
    start = end + 1;
  }
  const auto is_in_result = [&](const std::string& index) {
    if (std::isdigit(static_cast<unsigned char>(index.front())) != 0) return true;
    if (arrow != text.npos) return text.find(index, arrow) != text.npos;
    return std::ranges::count(inputs, index.front()) == 1;
  };
  Flops sum;
  auto left = all.front();
  bool has_gradient = operands.front().requires_grad();
  for (std::size_t i = 1; i < all.size(); ++i) {
    const auto is_needed = [&](const std::string& index) {
      return is_in_result(index) || std::any_of(all.begin() + static_cast<std::ptrdiff_t>(i) + 1, all.end(),
                                                [&](const auto& later) { return later.contains(index); });
    };
    std::map<std::string, double> both = left;
    for (const auto& [index, number] : all[i]) both[index] = std::max(both[index], number);
    double operations = 2;
    bool is_product = false;
    for (auto entry = both.begin(); entry != both.end();) {
      const auto& [index, number] = *entry;
      const bool is_shared = left.contains(index) && all[i].contains(index), is_kept = is_needed(index);
      if (is_shared || is_kept) operations *= number;
      is_product |= is_shared && !is_kept;
      entry = is_kept ? std::next(entry) : both.erase(entry);
    }
    left = std::move(both);
    const bool has_right = operands[i].requires_grad();
    if (is_product) {
      sum.forward += operations;
      sum.backward += operations * (double(has_gradient) + double(has_right));
    }
    has_gradient |= has_right;
  }
  return sum;
}

}  // namespace

Flops flops_of(std::string_view name, const Values& arguments, const torch::Tensor& result) {
  const auto tensor = [&](std::size_t i) { return arguments[i].toTensor(); };
  if (is_one_of(name, {"linear", "mm", "bmm", "mv"})) {
    return product(2 * count(result) * length(tensor(0), -1), tensor(0), tensor(1));
  }
  if (name == "linear_cross_entropy") {  // operands: [rows, width] and [classes, width]
    return product(2 * count(tensor(0)) * length(tensor(1), 0), tensor(0), tensor(1));
  }
  if (name == "matmul") return matrix_product(tensor(0), tensor(1), result);
  if (is_one_of(name, {"addmm", "baddbmm", "addmv"})) return matrix_product(tensor(1), tensor(2), result);
  if (name == "addbmm") return product(2 * count(tensor(1)) * length(tensor(2), -1), tensor(1), tensor(2));
  if (name == "einsum") return einsum(arguments[0].toStringRef(), arguments[1].toTensorVector());
  if (is_one_of(name, {"conv1d", "conv2d", "conv3d"})) return convolution(tensor(0), tensor(1), result, false);
  if (name.starts_with("conv_transpose")) return convolution(tensor(0), tensor(1), result, true);
  if (is_one_of(name, {"convolution", "_convolution"})) {
    return convolution(tensor(0), tensor(1), result, arguments[6].toBool());
  }
  if (name == "scaled_dot_product_attention") return attention(arguments, result);
  if (is_one_of(name, {"lstm_cell", "gru_cell"})) return recurrent(tensor(0), all_tensors(arguments, 2));
  if (is_one_of(name, {"lstm", "gru", "rnn_tanh", "rnn_relu"})) {
    const auto weights = std::ranges::find_if(arguments.rbegin(), arguments.rend(),
                                              [](const c10::IValue& value) { return value.isTensorList(); });
    return recurrent(tensor(0), weights->toTensorVector());
  }
  return {};
}

Values FlopCounter::call(const Operation& operation, Values arguments) {
  auto results = operation.proceed(arguments);
  if (results.empty() || !results.front().isTensor() || !results.front().toTensor().defined()) return results;
  const auto& result = results.front().toTensor();
  auto flops = flops_of(operation.name(), arguments, result);
  if (!is_forward_) flops.forward = 0;                     // computed again in backward
  if (!torch::GradMode::is_enabled()) flops.backward = 0;  // it will be computed again
  flops_ += flops.forward + flops.backward;
  if (flops.forward > 0) by_dtype_[result.scalar_type()] += flops.forward;
  return results;
}

void FlopCounter::begin_forward() {
  flops_ = 0;
  by_dtype_.clear();
  is_forward_ = true;
}

torch::ScalarType FlopCounter::dtype() const {
  const auto most = std::ranges::max_element(by_dtype_, {}, [](const auto& entry) { return entry.second; });
  return most == by_dtype_.end() ? torch::ScalarType::Undefined : most->first;
}

}  // namespace vernier
