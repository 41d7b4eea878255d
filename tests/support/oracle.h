// Reads tests/oracles, which README.md there describes.
#pragma once

#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <doctest/doctest.h>
#include <torch/types.h>
#include <vernier/safetensors.h>

#include <string>

// A recorded tensor is of one processor: sums split over threads have other last bits.
class Oracle {
 public:
  explicit Oracle(const std::string& name)
      : tensors_(vernier::load_safetensors(VERNIER_SOURCE_DIR "/tests/oracles/" + name + ".safetensors")) {
    at::set_num_threads(1);
  }

  const torch::Tensor& operator[](const std::string& name) const {
    const auto found = tensors_.find(name);
    REQUIRE_MESSAGE(found != tensors_.end(), name);
    return found->second;
  }
  bool has(const std::string& name) const { return tensors_.count(name) != 0; }
  const vernier::Tensors& tensors() const { return tensors_; }

 private:
  vernier::Tensors tensors_;
};

// nan equals nan, and 0 is not -0.
inline bool same_bits(const torch::Tensor& a, const torch::Tensor& b) {
  if (a.scalar_type() != b.scalar_type() || a.sizes() != b.sizes()) return false;
  const auto bits = a.element_size() == 8 ? torch::kInt64 : a.element_size() == 4 ? torch::kInt32 : torch::kInt16;
  const auto equal = a.contiguous().view(bits).eq(b.contiguous().view(bits));
  return equal.logical_or(a.isnan().logical_and(b.isnan())).all().item<bool>();
}

// max|a - b| / max|b| over the whole tensor.
inline double distance(const torch::Tensor& a, const torch::Tensor& b) {
  const auto difference = (a.to(torch::kFloat64) - b.to(torch::kFloat64)).abs().max().item<double>();
  return difference / b.to(torch::kFloat64).abs().max().item<double>();
}
