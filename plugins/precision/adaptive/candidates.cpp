// An operation in several dtypes: the names of these, a run, and its error.
#include "candidates.h"

#include <ATen/core/dispatch/Dispatcher.h>
#include <torch/csrc/autograd/autograd.h>
#include <vernier/float8_linear.h>

namespace adaptive {

using vernier::Operation;
using vernier::Values;

namespace {

// Changes all floating-point tensors, those in lists too.
template <class Change>
void change_floats(Values& values, const Change& change) {
  const auto is_float = [](const torch::Tensor& tensor) { return tensor.defined() && tensor.is_floating_point(); };
  for (auto& value : values) {
    if (value.isTensor() && is_float(value.toTensor())) {
      value = change(value.toTensor());
    } else if (value.isTensorList()) {
      c10::List<torch::Tensor> changed;
      for (const torch::Tensor& each : value.toTensorList()) changed.push_back(is_float(each) ? change(each) : each);
      value = std::move(changed);
    }
  }
}

}  // namespace

torch::ScalarType dtype_of(Use use) {
  return use == Use::fp32 ? torch::kFloat32 : use == Use::fp16 ? torch::kFloat16 : torch::kBFloat16;
}
const char* name_of(Use use) {
  return use == Use::fp32 ? "fp32" : use == Use::fp16 ? "fp16" : use == Use::fp8 ? "fp8" : "bf16";
}

double error_of(const torch::Tensor& got, const torch::Tensor& exact) {
  if (!got.defined() || !exact.defined()) return 0;
  const auto a = got.detach().to(torch::kFloat64), b = exact.detach().to(torch::kFloat64);
  const double norm = b.norm().item<double>(), distance = (a - b).norm().item<double>();
  if (norm == 0 || !std::isfinite(norm)) return 0;
  return std::isfinite(distance) ? distance / norm : HUGE_VAL;
}

Repeated::Repeated(const Operation& operation, const Values& arguments)
    : handle_(operation.handle()), arguments_(arguments) {
  change_floats(arguments_, [this](const torch::Tensor& tensor) {
    const auto leaf = tensor.detach().to(torch::kFloat32).requires_grad_(tensor.requires_grad());
    if (leaf.requires_grad()) inputs_.push_back(leaf);
    return leaf;
  });
  for (std::size_t i = 0; i < arguments_.size(); ++i) {  // no dropout, so that results can be compared
    if (handle_.schema().arguments()[i].name().starts_with("dropout")) arguments_[i] = 0.0;
  }
  linear_ = vernier::linear_call(operation, arguments_);
}

bool Repeated::fits(Use use) const {
  return use != Use::fp8 || (linear_ && linear_->weight.size(0) % 16 == 0 && linear_->weight.size(1) % 16 == 0);
}

// A scale of fp8 is that of the tensor itself, because there is no history of it yet.
std::vector<torch::Tensor> Repeated::run(Use use, const torch::Tensor& gradient) const {
  const torch::AutoGradMode differentiated(true);
  auto arguments = arguments_;
  if (use == Use::fp8) {
    vernier::Float8Linear layer(vernier::float8_recipe("current"));
    arguments = {layer.forward(linear_->input, linear_->weight, linear_->bias)};
  } else {
    change_floats(arguments, [&](const torch::Tensor& tensor) { return tensor.to(dtype_of(use)); });
    handle_.callBoxed(&arguments);
  }
  std::vector<torch::Tensor> all = {arguments[0].toTensor()};
  const auto gradients = torch::autograd::grad(all, inputs_, {gradient.to(all[0].scalar_type())}, std::nullopt,
                                               /*create_graph=*/false, /*allow_unused=*/true);
  all.insert(all.end(), gradients.begin(), gradients.end());
  return all;
}

}  // namespace adaptive
