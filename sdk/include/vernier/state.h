// What a plugin saves in a checkpoint: named tensors, with numbers and texts stored as tensors.
#pragma once

#include <vernier/abi.h>
#include <vernier/tensor.h>

#include <cstdint>
#include <map>
#include <string>

namespace vernier {

using Tensors = std::map<std::string, torch::Tensor>;

// Tensors are shared, not copied: to keep a State while training continues, clone its tensors. Numbers are exact (64
// bits). Reading a missing name, or one of another type, throws Error with the name.
class VERNIER_API State {
 public:
  void put(const std::string& name, torch::Tensor value);
  void put(const std::string& name, std::int64_t value);
  void put(const std::string& name, double value);
  void put(const std::string& name, const std::string& value);
  void put(const std::string& prefix, const State& part);  // puts each entry of part as "prefix/entry"

  bool has(const std::string& name) const { return tensors.count(name) != 0; }
  torch::Tensor tensor(const std::string& name) const;
  std::int64_t integer(const std::string& name) const;
  double real(const std::string& name) const;
  std::string text(const std::string& name) const;
  State part(const std::string& prefix) const;  // the entries below "prefix/", without this prefix

  Tensors tensors;
};

}  // namespace vernier
