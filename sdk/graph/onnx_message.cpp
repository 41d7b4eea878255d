#include "onnx_message.h"

#include <ATen/ops/view_as_real.h>
#include <vernier/error.h>

#include <type_traits>
#include <utility>

namespace vernier::graph {

namespace {

// The types of attributes, of the schema's enum AttributeType.
enum Type { type_float = 1, type_int = 2, type_text = 3, type_floats = 6, type_ints = 7, type_texts = 8 };

}  // namespace

int onnx_dtype(torch::ScalarType dtype) {
  constexpr std::pair<torch::ScalarType, int> numbers[] = {
      {torch::kFloat32, 1},  {torch::kUInt8, 2},     {torch::kInt8, 3},         {torch::kInt16, 5},
      {torch::kInt32, 6},    {torch::kInt64, 7},     {torch::kBool, 9},         {torch::kFloat16, 10},
      {torch::kFloat64, 11}, {torch::kBFloat16, 16}, {torch::kComplexFloat, 1}, {torch::kComplexDouble, 11}};
  for (const auto& [known, number] : numbers) {
    if (known == dtype) return number;
  }
  refuse(std::string("ONNX has no tensors of ") + c10::toString(dtype));
}

Message attribute_message(const Attribute& attribute) {
  Message message;
  message.text(1, attribute.name);
  const auto type = std::visit(
      [&](const auto& value) {
        using Value = std::decay_t<decltype(value)>;
        if constexpr (std::is_same_v<Value, float>) return message.single(2, value), type_float;
        if constexpr (std::is_same_v<Value, std::int64_t>) return message.number(3, value), type_int;
        if constexpr (std::is_same_v<Value, std::string>) return message.text(4, value), type_text;
        if constexpr (std::is_same_v<Value, std::vector<float>>) {
          for (const auto one : value) message.single(7, one);
          return type_floats;
        }
        if constexpr (std::is_same_v<Value, std::vector<std::int64_t>>) {
          for (const auto one : value) message.number(8, one);
          return type_ints;
        }
        if constexpr (std::is_same_v<Value, std::vector<std::string>>) {
          for (const auto& one : value) message.text(9, one);
          return type_texts;
        }
      },
      attribute.value);
  message.number(20, type);
  return message;
}

Message tensor_message(const std::string& name, const torch::Tensor& tensor) {
  auto values = tensor.detach().resolve_conj().resolve_neg().to(torch::kCPU).contiguous();
  if (values.is_complex()) values = at::view_as_real(values);
  Message message;
  for (const auto size : values.sizes()) message.number(1, size);
  message.number(2, onnx_dtype(values.scalar_type()));
  message.text(8, name);
  message.text(9, {static_cast<const char*>(values.const_data_ptr()), values.nbytes()});
  return message;
}

Message texts_message(const std::string& name, const std::vector<std::string>& texts) {
  Message message;
  message.number(1, std::ssize(texts));
  message.number(2, onnx_text);
  for (const auto& text : texts) message.text(6, text);
  message.text(8, name);
  return message;
}

Message input_message(const std::string& name, int dtype,
                      const std::vector<std::variant<std::int64_t, std::string>>& sizes) {
  Message shape, tensor_type, type, info;
  for (const auto& size : sizes) {
    Message dimension;
    if (const auto* number = std::get_if<std::int64_t>(&size)) dimension.number(1, *number);
    if (const auto* text = std::get_if<std::string>(&size)) dimension.text(2, *text);
    shape.message(1, dimension);
  }
  tensor_type.number(1, dtype);
  tensor_type.message(2, shape);
  type.message(1, tensor_type);
  info.text(1, name);
  info.message(2, type);
  return info;
}

}  // namespace vernier::graph
