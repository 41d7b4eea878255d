// For tests of vernier/fused_kernels.h.
#pragma once

#include <torch/types.h>
#include <vernier/fused_kernels.h>

#include <functional>

namespace fused_test {

struct Fused {
  explicit Fused(bool on = true) : before(vernier::fused_kernels()) { vernier::use_fused_kernels(on); }
  ~Fused() { vernier::use_fused_kernels(before); }
  bool before;
};

inline torch::Tensor plain(const std::function<torch::Tensor()>& body) {
  const Fused off(false);
  return body();
}

// The unit of the last place of a result of size 1.
inline double unit_of(torch::ScalarType dtype) {
  return dtype == torch::kFloat32 ? 0x1p-23 : dtype == torch::kHalf ? 0x1p-10 : 0x1p-7;
}

}  // namespace fused_test
