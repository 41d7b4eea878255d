// A summary of a tensor's values: their size, and how many are 0, inf or NaN.
#pragma once

#include <vernier/abi.h>
#include <vernier/tensor.h>

#include <cstdint>
#include <string>

namespace vernier {

struct VERNIER_API TensorRange {
  std::int64_t elements = 0;
  double amax = 0, rms = 0;  // largest magnitude and root mean square of the finite values
  std::int64_t zeros = 0, infs = 0, nans = 0;
  std::int64_t negative_infs = 0;  // how many of the infs
  torch::ScalarType dtype = torch::ScalarType::Undefined;
  bool is_finite() const { return infs == 0 && nans == 0; }
  // "amax 3.1 rms 0.42, 12 % zeros, 3 inf, 1 nan of 4096 float16"
  std::string text() const;
};

// Measures a floating-point tensor; for other dtypes it sets only elements and dtype. Runs without autograd, autocast
// or tracing. It is a host sync on a GPU.
VERNIER_API TensorRange range_of(const torch::Tensor& tensor);

// The same in two parts, without a host sync. measure_range() returns seven float64 on the tensor's device: elements,
// amax, sum of squares, zeros, infs, NaNs, negative infs. range_from() reads them on the host.
VERNIER_API torch::Tensor measure_range(const torch::Tensor& tensor);
VERNIER_API TensorRange range_from(const double* measured, torch::ScalarType dtype);

}  // namespace vernier
