// What the values of a tensor are like: how large, how many are 0 and how many no numbers.
#pragma once

#include <torch/types.h>
#include <vernier/abi.h>

#include <cstdint>
#include <string>

namespace vernier {

struct VERNIER_API TensorRange {
  std::int64_t elements = 0;
  double amax = 0, rms = 0;  // of those that are finite
  std::int64_t zeros = 0, infs = 0, nans = 0;
  std::int64_t negative_infs = 0;  // of the infs
  torch::ScalarType dtype = torch::ScalarType::Undefined;
  bool is_finite() const { return infs == 0 && nans == 0; }
  // "amax 3.1 rms 0.42, 12 % zeros, 3 inf, 1 nan of 4096 float16"
  std::string text() const;
};

// Of a floating-point tensor; of others only elements and dtype are set. No autograd, no autocast, nobody watches. A host
// sync on a GPU.
VERNIER_API TensorRange range_of(const torch::Tensor& tensor);

// The same without a sync: seven float64 on the tensor's device (elements, amax, sum of squares, zeros, infs, nans,
// negative infs), and what they mean.
VERNIER_API torch::Tensor measure_range(const torch::Tensor& tensor);
VERNIER_API TensorRange range_from(const double* measured, torch::ScalarType dtype);

}  // namespace vernier
