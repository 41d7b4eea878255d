// Messages of ONNX, by the field numbers of onnx.proto (IR version 9), in the wire format of protocol buffers.
#pragma once

#include <torch/types.h>

#include <cstring>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

namespace vernier::graph {

// A message: fields are appended in any order.
class Message {
 public:
  void number(int field, std::int64_t value) {
    varint(static_cast<std::uint64_t>(field) << 3);
    varint(static_cast<std::uint64_t>(value));
  }
  void single(int field, float value) {
    varint(static_cast<std::uint64_t>(field) << 3 | 5);
    char bytes[sizeof value];
    std::memcpy(bytes, &value, sizeof value);
    bytes_.append(bytes, sizeof value);
  }
  void text(int field, std::string_view value) {
    varint(static_cast<std::uint64_t>(field) << 3 | 2);
    varint(value.size());
    bytes_ += value;
  }
  void message(int field, const Message& value) { text(field, value.bytes_); }
  const std::string& bytes() const { return bytes_; }

 private:
  void varint(std::uint64_t value) {
    for (; value >= 128; value >>= 7) bytes_ += static_cast<char>((value & 127) | 128);
    bytes_ += static_cast<char>(value);
  }

  std::string bytes_;
};

// An attribute of a node.
struct Attribute {
  std::string name;
  std::variant<std::int64_t, float, std::string, std::vector<std::int64_t>, std::vector<float>,
               std::vector<std::string>>
      value;
};

// Returns the number that ONNX has for a dtype, for a complex one that of its parts. Throws Error if it has none.
int onnx_dtype(torch::ScalarType dtype);
constexpr int onnx_text = 8;  // the dtype of texts

Message attribute_message(const Attribute& attribute);
Message tensor_message(const std::string& name, const torch::Tensor& tensor);
Message texts_message(const std::string& name, const std::vector<std::string>& texts);
// sizes: a number, or a name, of each dimension.
Message input_message(const std::string& name, int dtype,
                      const std::vector<std::variant<std::int64_t, std::string>>& sizes);

}  // namespace vernier::graph
