// Draft: tensors whose values another rank keeps (distributed/zero3), and sums of what each rank has of the gradients.
// Headers in draft/ may change in any version, and are not part of VERNIER_ABI.
#pragma once

#include <vernier/abi.h>
#include <vernier/tensor.h>

#include <functional>

namespace vernier::draft {
inline namespace gradient_parts_1 {

// Returns true if another rank keeps the values: the tensor has its shape and no memory. Reading its bytes crashes.
VERNIER_API bool is_elsewhere(const torch::Tensor& tensor);
// Frees the memory of a tensor on the CPU that has all of its storage. It keeps shape, strides and version.
VERNIER_API void leave_elsewhere(const torch::Tensor& tensor);

// A base class of a callback, beside its role: what it reads of gradients is added up by sum() below, or is of each
// value alone. Other callbacks that look at gradients need those of all parameters.
class VERNIER_API TakesParts {
 protected:
  virtual ~TakesParts();
};

// While one exists, each gradient of the run has memory on one rank, and is_elsewhere() on the others. Main thread
// only.
class VERNIER_API GradientParts {
 public:
  // sum: replaces numbers, float32 or float64 on the CPU, by their sums over the ranks.
  explicit GradientParts(std::function<void(const torch::Tensor&)> sum);
  ~GradientParts();
  GradientParts(const GradientParts&) = delete;
  GradientParts& operator=(const GradientParts&) = delete;

  static bool exist();  // true: there is one
  // Replaces numbers by their sums if one exists. A rank gives 0 for each gradient that is elsewhere. All ranks must
  // call it at the same moment.
  static void sum(const torch::Tensor& numbers);

 private:
  std::function<void(const torch::Tensor&)> sum_;
};

}  // namespace gradient_parts_1
}  // namespace vernier::draft
