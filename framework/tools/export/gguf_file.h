// A GGUF file, as llama.cpp reads models: https://github.com/ggml-org/ggml/blob/master/docs/gguf.md, version 3.
#pragma once

#include <torch/types.h>

#include <cstdint>
#include <string>
#include <utility>
#include <variant>
#include <vector>

namespace vernier::gguf {

// The numbers of ggml_type. q8_0: blocks of 32 numbers of a row, a float16 scale and 32 int8 each.
enum class Type : std::uint32_t { f32 = 0, f16 = 1, q8_0 = 8, bf16 = 30 };

class File {
 public:
  using Value = std::variant<std::uint32_t, float, bool, std::string, std::vector<std::string>, std::vector<float>,
                             std::vector<std::int32_t>>;

  void set(const std::string& key, Value value) { keys_.emplace_back(key, std::move(value)); }
  // tensor: of any dtype; the axes as in PyTorch. A row that q8_0 cannot cut into blocks becomes float16.
  void add(const std::string& name, const torch::Tensor& tensor, Type type);
  // Throws Error, naming the path, if it cannot be written.
  void write(const std::string& path) const;

 private:
  struct Tensor {
    std::string name;
    torch::Tensor value;
    Type type;
  };
  std::vector<std::pair<std::string, Value>> keys_;
  std::vector<Tensor> tensors_;
};

}  // namespace vernier::gguf
