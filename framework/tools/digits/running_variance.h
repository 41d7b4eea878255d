// Mean and variance of tensors over several samples of a computation, and their significant digits.
#pragma once

#include <torch/types.h>
#include <vernier/lab/random_rounding.h>

#include <optional>
#include <unordered_set>
#include <vector>

namespace vernier {

// The digits of the numbers of a layer, its gradient or its update.
struct NumbersDigits {
  double digits = 0;     // digits of all numbers: -log10 of the root of the sum of variances over that of squares
  double median = 0;     // median of the digits of single numbers
  double deviation = 0;  // root mean square of the standard deviations
  double rms = 0;        // root mean square of the means
};

// Mean and variance of each number of a tensor, by Welford's method.
class RunningVariance {
 public:
  // dtype: that in which the numbers are kept, if it is not the tensor's.
  void add(const torch::Tensor& tensor, std::optional<torch::ScalarType> dtype = {});

  torch::Tensor mean() const { return mean_.flatten(); }
  torch::Tensor variance() const { return squares_.flatten() / static_cast<double>(count_ - 1); }
  bool is_known() const { return count_ > 1; }
  torch::ScalarType dtype() const { return dtype_; }

 private:
  std::int64_t count_ = 0;
  torch::ScalarType dtype_ = torch::kFloat32;
  torch::Tensor mean_, squares_;
};

// Takes all numbers of several tensors together.
std::optional<NumbersDigits> joint_digits(const std::vector<const RunningVariance*>& of_tensors);

// Remembers which tensors operators wrote in the update: the other weights were written by fused kernels.
struct WrittenStorages final : RoundingListener {
  void called(const RoundedCall& call) override {
    if (!call.is_rounded) return;
    for (const auto& output : call.outputs) storages.insert(output.storage().unsafeGetStorageImpl());
  }
  std::unordered_set<const c10::StorageImpl*> storages;
};

}  // namespace vernier
