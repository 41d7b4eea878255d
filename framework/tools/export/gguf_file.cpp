#include "gguf_file.h"

#include <ATen/ops/cat.h>
#include <ATen/ops/where.h>
#include <vernier/error.h>

#include <fstream>
#include <span>

namespace vernier::gguf {

namespace {

constexpr std::uint32_t version = 3;
constexpr std::uint64_t alignment = 32;  // alignment of each tensor, unless the file gives another
constexpr std::int64_t block = 32;       // numbers of q8_0

std::uint64_t aligned(std::uint64_t size) {
  return (size + alignment - 1) / alignment * alignment;
}

// The bytes of a header; numbers are little-endian, as they are in memory.
class Bytes {
 public:
  template <class Number>
  Bytes& add(Number number) {
    text_.append(reinterpret_cast<const char*>(&number), sizeof number);
    return *this;
  }
  Bytes& add(const std::string& text) {
    add(std::uint64_t{text.size()});
    text_ += text;
    return *this;
  }
  const std::string& text() const { return text_; }

 private:
  std::string text_;
};

// The numbers of gguf_metadata_value_type.
constexpr std::uint32_t number_of(std::uint32_t) {
  return 4;
}
constexpr std::uint32_t number_of(std::int32_t) {
  return 5;
}
constexpr std::uint32_t number_of(float) {
  return 6;
}
constexpr std::uint32_t number_of(bool) {
  return 7;
}
std::uint32_t number_of(const std::string&) {
  return 8;
}
constexpr std::uint32_t number_of_array = 9;

template <class Value>
void add_value(Bytes& bytes, const Value& value) {
  bytes.add(number_of(value)).add(value);
}
template <class Item>
void add_value(Bytes& bytes, const std::vector<Item>& items) {
  bytes.add(number_of_array).add(number_of(Item())).add(std::uint64_t{items.size()});
  for (const auto& item : items) bytes.add(item);
}

// Rounds as ggml does: halves go away from zero, and the scale that divides is not rounded.
torch::Tensor in_blocks(const torch::Tensor& tensor) {
  const auto rows = tensor.to(torch::kFloat32).contiguous().view({-1, block});
  const auto scale = rows.abs().amax({1}, /*keepdim=*/true) / 127;
  const auto inverse = at::where(scale == 0, scale, 1 / scale);
  const auto scaled = rows * inverse, size = scaled.abs(), whole = size.floor();
  const auto rounded = scaled.sign() * (whole + (2 * (size - whole)).floor());
  return at::cat({scale.to(torch::kFloat16).view(torch::kInt8), rounded.to(torch::kInt8)}, 1);
}

torch::Tensor encoded(const torch::Tensor& tensor, Type type) {
  switch (type) {
    case Type::f32:
      return tensor.to(torch::kFloat32).contiguous();
    case Type::f16:
      return tensor.to(torch::kFloat16).contiguous();
    case Type::bf16:
      return tensor.to(torch::kBFloat16).contiguous();
    case Type::q8_0:
      return in_blocks(tensor);
  }
  throw Error("a type of GGUF that is unknown");
}

std::uint64_t bytes_of(const torch::Tensor& tensor, Type type) {
  const auto numbers = static_cast<std::uint64_t>(tensor.numel());
  if (type == Type::q8_0) return numbers / block * (block + 2);
  return numbers * (type == Type::f32 ? 4 : 2);
}

}  // namespace

void File::add(const std::string& name, const torch::Tensor& tensor, Type type) {
  if (type == Type::q8_0 && tensor.size(-1) % block != 0) type = Type::f16;
  tensors_.push_back({name, tensor, type});
}

void File::write(const std::string& path) const {
  Bytes head;
  head.add(std::uint32_t{0x46554747})  // "GGUF"
      .add(version)
      .add(std::uint64_t{tensors_.size()})
      .add(std::uint64_t{keys_.size()});
  for (const auto& [key, value] : keys_) {
    head.add(key);
    std::visit([&](const auto& any) { add_value(head, any); }, value);
  }
  std::uint64_t offset = 0;
  for (const auto& [name, value, type] : tensors_) {
    head.add(name).add(static_cast<std::uint32_t>(value.dim()));
    for (auto axis = value.dim() - 1; axis >= 0; --axis) head.add(static_cast<std::uint64_t>(value.size(axis)));
    head.add(static_cast<std::uint32_t>(type)).add(offset);
    offset += aligned(bytes_of(value, type));
  }
  std::ofstream file(path, std::ios::binary);
  const auto write_aligned = [&](const char* data, std::uint64_t size) {
    file.write(data, static_cast<std::streamsize>(size)) << std::string(aligned(size) - size, '\0');
  };
  write_aligned(head.text().data(), head.text().size());
  for (const auto& [name, value, type] : tensors_) {
    const auto bytes = encoded(value.detach().to(torch::kCPU), type);
    write_aligned(static_cast<const char*>(bytes.const_data_ptr()), bytes.nbytes());
  }
  if (!file.flush()) throw Error(path + ": cannot be written; the disk may be full");
}

}  // namespace vernier::gguf
