#include "values.h"

#include <ATen/ScalarOps.h>
#include <ATen/core/List.h>
#include <ATen/core/jit_type.h>
#include <vernier/error.h>

#include <algorithm>
#include <limits>

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

bool is_word(const c10::TypePtr& type) {
  if (!type) return false;
  const auto kind = type->kind();
  return kind == TypeKind::ScalarTypeType || kind == TypeKind::LayoutType || kind == TypeKind::MemoryFormatType;
}

bool is_of_type(const IValue& value, const c10::TypePtr& type) {
  // The negative of the least number is not a number.
  const auto is_whole = [&] { return value.isInt() && value.toInt() != std::numeric_limits<std::int64_t>::min(); };
  switch (type->kind()) {
    case TypeKind::OptionalType:
      return value.isNone() || is_of_type(value, type->castRaw<c10::OptionalType>()->getElementType());
    case TypeKind::ListType: {
      const auto& element = type->castRaw<c10::ListType>()->getElementType();
      const auto fits = [&](const IValue& each) { return is_of_type(each, element); };
      return value.isList() && std::ranges::all_of(value.toListRef(), fits);
    }
    case TypeKind::TensorType:
      return value.isTensor();
    case TypeKind::IntType:
    case TypeKind::SymIntType:
    case TypeKind::ScalarTypeType:
    case TypeKind::LayoutType:
    case TypeKind::MemoryFormatType:
      return is_whole();
    case TypeKind::NumberType:
      return value.isDouble() || value.isBool() || is_whole();
    case TypeKind::FloatType:
      return value.isDouble();
    case TypeKind::BoolType:
      return value.isBool();
    case TypeKind::StringType:
      return value.isString();
    case TypeKind::DeviceObjType:
      return value.isDevice();
    default:
      return value.isNone();
  }
}

IValue list_of(const std::vector<IValue>& values, const c10::TypePtr& element) {
  for (const auto& value : values) {
    if (!is_of_type(fitted(value, element), element))
      vernier::refuse("a list of " + element->str() + " has " + value.tagKind());
  }
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
