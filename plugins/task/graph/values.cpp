#include "values.h"

#include <ATen/ScalarOps.h>
#include <ATen/core/List.h>
#include <ATen/core/jit_type.h>
#include <vernier/error.h>

namespace graph {

using c10::IValue;
using c10::TypeKind;

namespace {

template <class Element, class Convert>
IValue typed(const std::vector<IValue>& values, Convert convert) {
  c10::List<Element> list;
  list.reserve(values.size());
  for (const auto& value : values) list.push_back(convert(value));
  return list;
}

}  // namespace

IValue fitted(IValue value, const c10::TypePtr& type) {
  if (!type) return value;
  if (type->kind() == TypeKind::TensorType && value.isScalar()) {
    auto number = at::scalar_to_tensor(value.toScalar());
    number.unsafeGetTensorImpl()->set_wrapped_number(true);
    return number;
  }
  if (type->kind() == TypeKind::FloatType && value.isInt()) return static_cast<double>(value.toInt());
  return value;
}

IValue list_of(const std::vector<IValue>& values, const c10::TypePtr& element) {
  switch (element->kind()) {
    case TypeKind::TensorType:
      return typed<at::Tensor>(values, [](const IValue& value) { return value.toTensor(); });
    case TypeKind::OptionalType:
      return typed<std::optional<at::Tensor>>(
          values, [](const IValue& value) { return value.isNone() ? std::nullopt : std::optional(value.toTensor()); });
    case TypeKind::FloatType:
      return typed<double>(values, [](const IValue& value) {
        return value.isInt() ? static_cast<double>(value.toInt()) : value.toDouble();
      });
    case TypeKind::BoolType:
      return typed<bool>(values, [](const IValue& value) { return value.toBool(); });
    case TypeKind::IntType:
    case TypeKind::SymIntType:
      return typed<std::int64_t>(values, [](const IValue& value) { return value.toInt(); });
    case TypeKind::NumberType:
      return typed<c10::Scalar>(values, [](const IValue& value) { return value.toScalar(); });
    default:
      vernier::refuse("a list of " + element->str() + " is not an argument of an exported program");
  }
}

}  // namespace graph
