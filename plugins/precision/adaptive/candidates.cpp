// The candidates of an operation: their names, a run of one, and its error.
#include "candidates.h"

#include <ATen/core/dispatch/Dispatcher.h>
#include <torch/csrc/autograd/autograd.h>
#include <vernier/attention.h>

#include <algorithm>
#include <cmath>

namespace adaptive {

using vernier::Operation;
using vernier::Values;

namespace {

torch::ScalarType dtype_of(Use use) {
  return use == Use::bf16 ? torch::kBFloat16 : use == Use::fp16 ? torch::kFloat16 : torch::kFloat32;
}

bool is_float(const c10::IValue& value) {
  return value.isTensor() && value.toTensor().defined() && value.toTensor().is_floating_point();
}

}  // namespace

const char* name_of(Use use) {
  return use == Use::bf16 ? "bf16" : use == Use::fp16 ? "fp16" : "fp32";
}
const char* name_of(Kernel kernel) {
  return kernel == Kernel::matmul ? "matmul" : "fused";
}
Use use_named(const std::string& name) {
  return name == "bf16" ? Use::bf16 : name == "fp16" ? Use::fp16 : Use::fp32;
}
std::string text_of(const Candidate& candidate) {
  return std::string(name_of(candidate.use)) + (candidate.kernel == Kernel::matmul ? " by matmul" : "");
}

void compare(const torch::Tensor& got, const torch::Tensor& exact, Measured& into) {
  const auto a = got.detach().to(torch::kFloat64).flatten(), b = exact.detach().to(torch::kFloat64).flatten();
  const auto finite = a.isfinite();
  into.overflows = into.overflows || (~finite & b.isfinite()).any().item<bool>();
  const double norm = b.norm().item<double>(), distance = (a - b).norm().item<double>();
  if (norm == 0 || !std::isfinite(norm)) return;  // nothing to compare with
  into.error = std::max(into.error, std::isfinite(distance) ? distance / norm : HUGE_VAL);
  into.cosine = std::min(into.cosine, a.dot(b).item<double>() / (a.norm().item<double>() * norm));
  const auto lost = (a == 0) & (b != 0);
  into.underflow = std::max(into.underflow, lost.to(torch::kFloat64).mean().item<double>());
}

Repeated::Repeated(const Operation& operation, const Values& arguments)
    : handle_(operation.handle()), is_attention_(operation.name() == attention), arguments_(arguments) {
  for (auto& argument : arguments_) {
    if (!is_float(argument)) continue;
    const auto& tensor = argument.toTensor();
    argument = tensor.detach().to(torch::kFloat32).requires_grad_(tensor.requires_grad());
  }
  if (is_attention_) arguments_[4] = 0.0;  // without dropout, so that results can be compared
}

std::string Repeated::work() const {
  std::string text = handle_.schema().name();
  for (const auto& argument : arguments_) {
    if (is_float(argument)) text += c10::str(' ', argument.toTensor().sizes());
  }
  return text;
}

std::vector<torch::Tensor> Repeated::run(const Candidate& candidate, const torch::Tensor& gradient) const {
  const torch::AutoGradMode differentiated(true);
  std::vector<torch::Tensor> inputs;
  auto arguments = arguments_;
  for (auto& argument : arguments) {
    if (!is_float(argument)) continue;
    if (argument.toTensor().requires_grad()) inputs.push_back(argument.toTensor());
    argument = argument.toTensor().to(dtype_of(candidate.use));
  }
  const auto output = call(candidate, std::move(arguments));
  std::vector<torch::Tensor> all = {output};
  for (auto& each : torch::autograd::grad({output}, inputs, {gradient.to(output.scalar_type())})) all.push_back(each);
  return all;
}

torch::Tensor Repeated::call(const Candidate& candidate, Values arguments) const {
  const bool shares_heads = is_attention_ && arguments[7].toBool();  // these take the fused kernel here
  if (is_attention_ && candidate.kernel == Kernel::matmul && !shares_heads) {
    return vernier::attention_by_matmul(arguments[0].toTensor(), arguments[1].toTensor(), arguments[2].toTensor(),
                                        arguments[3].toOptional<torch::Tensor>().value_or(torch::Tensor()), 0.0,
                                        arguments[5].toBool(), arguments[6].toOptional<double>());
  }
  handle_.callBoxed(&arguments);
  return arguments[0].toTensor();
}

}  // namespace adaptive
