#include <vernier/linear_call.h>

namespace vernier {

namespace {

bool is_one(const c10::IValue& value) {
  return value.isScalar() && value.toScalar().equal(1);
}

}  // namespace

std::optional<LinearCall> linear_call(const Operation& operation, const Values& arguments) {
  if (operation.layer_index() < 0) return std::nullopt;
  const auto name = operation.name();
  LinearCall call;
  if (name == "linear") {
    const auto bias = arguments[2].toOptional<at::Tensor>();
    call = {arguments[0].toTensor(), arguments[1].toTensor(), bias.value_or(at::Tensor())};
  } else if (name == "addmm" && is_one(arguments[3]) && is_one(arguments[4])) {
    call = {arguments[1].toTensor(), arguments[2].toTensor().t(), arguments[0].toTensor()};
  } else if ((name == "mm" || name == "matmul") && arguments[1].toTensor().dim() == 2) {
    call = {arguments[0].toTensor(), arguments[1].toTensor().t(), at::Tensor()};
  } else {
    return std::nullopt;
  }
  if (call.weight.dim() != 2 || (call.bias.defined() && call.bias.dim() != 1)) return std::nullopt;
  return call;
}

}  // namespace vernier
