// One operation in several dtypes, by itself: its time and its error.
#pragma once

#include <torch/types.h>
#include <vernier/linear_call.h>
#include <vernier/precision_rules.h>

#include <cmath>
#include <optional>
#include <string>
#include <vector>

namespace adaptive {

using Use = vernier::PrecisionRule::Use;

torch::ScalarType dtype_of(Use use);  // fp8: bfloat16, the dtype of the rest
const char* name_of(Use use);

// An operation in one dtype.
struct Measured {
  double seconds = HUGE_VAL;  // the least time of forward and backward
  double error = HUGE_VAL;    // relative, the largest of outputs and gradients; infinite: overflow, or no kernel
};

// Returns the relative RMS error of a result; 0: there is nothing to compare with.
double error_of(const torch::Tensor& got, const torch::Tensor& exact);

// One call of an operation, to be run again by itself when its gradient is known.
class Repeated {
 public:
  Repeated(const vernier::Operation& operation, const vernier::Values& arguments);
  bool fits(Use use) const;  // fp8 is for linear layers whose widths are multiples of 16
  // The output, and the gradients of all inputs that require one.
  std::vector<torch::Tensor> run(Use use, const torch::Tensor& gradient) const;

 private:
  c10::OperatorHandle handle_;
  vernier::Values arguments_;
  std::vector<torch::Tensor> inputs_;          // the arguments that require a gradient
  std::optional<vernier::LinearCall> linear_;  // the arguments of a linear layer
};

}  // namespace adaptive
