// Compares tensors.
#pragma once

#include <doctest/doctest.h>
#include <vernier/state.h>

#include <algorithm>
#include <string>
#include <vector>

inline bool equal(const std::vector<torch::Tensor>& a, const std::vector<torch::Tensor>& b) {
  return std::ranges::equal(a, b, [](const auto& x, const auto& y) { return x.equal(y); });
}

inline std::string bytes_of(const torch::Tensor& tensor) {
  const auto whole = tensor.contiguous();
  return {static_cast<const char*>(whole.const_data_ptr()), whole.nbytes()};
}

// By name, dtype, shape and bytes.
inline void check_equal(const vernier::Tensors& left, const vernier::Tensors& right) {
  REQUIRE(left.size() == right.size());
  for (const auto& [name, tensor] : left) {
    CAPTURE(name);
    REQUIRE(right.count(name) == 1);
    const auto& other = right.at(name);
    CHECK((tensor.scalar_type() == other.scalar_type()));
    CHECK((tensor.sizes() == other.sizes()));
    CHECK((bytes_of(tensor) == bytes_of(other)));
  }
}
