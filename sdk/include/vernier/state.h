// What a plugin must remember over a stop: named tensors, and numbers and texts kept as tensors.
#pragma once

#include <torch/types.h>
#include <vernier/abi.h>

#include <cstdint>
#include <map>
#include <string>

namespace vernier {

using Tensors = std::map<std::string, torch::Tensor>;

// Tensors are shared, not copied: whoever keeps a State beyond the moment clones what may change. Numbers are exact
// (64 bits). Reading a name that is not there, or of another kind, throws Error naming it.
class VERNIER_API State {
 public:
  void put(const std::string& name, torch::Tensor value);
  void put(const std::string& name, std::int64_t value);
  void put(const std::string& name, double value);
  void put(const std::string& name, const std::string& value);
  void put(const std::string& prefix, const State& part);  // every entry of part as "prefix/entry"

  bool has(const std::string& name) const { return tensors.count(name) != 0; }
  torch::Tensor tensor(const std::string& name) const;
  std::int64_t integer(const std::string& name) const;
  double real(const std::string& name) const;
  std::string text(const std::string& name) const;
  State part(const std::string& prefix) const;  // the entries below "prefix/", without it

  Tensors tensors;
};

}  // namespace vernier
