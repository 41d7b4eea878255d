// The candidates that precision/adaptive has for an operation, and the measurement of one.
#pragma once

#include <torch/types.h>
#include <vernier/precision_rules.h>

#include <string>
#include <vector>

namespace adaptive {

using Use = vernier::PrecisionRule::Use;
using Kernel = vernier::PrecisionRule::Kernel;

constexpr const char* attention = "scaled_dot_product_attention";

// A dtype and a kernel for an operation.
struct Candidate {
  Use use;
  Kernel kernel;
  bool operator==(const Candidate&) const = default;
};

const char* name_of(Use use);
const char* name_of(Kernel kernel);
Use use_named(const std::string& name);
std::string text_of(const Candidate& candidate);

// The results of one candidate at one site, in the last step that was measured.
struct Measured {
  double error = 0;      // relative, the largest of outputs and gradients
  double cosine = 1;     // the smallest
  double underflow = 0;  // the largest share of numbers that are 0 here and not in float32
  bool overflows = false;
};

// Adds the distance of a candidate's result from float32's.
void compare(const torch::Tensor& got, const torch::Tensor& exact, Measured& into);

// One call of an operation, to be run again by itself when its gradient is known.
class Repeated {
 public:
  Repeated(const vernier::Operation& operation, const vernier::Values& arguments);
  // "linear [2048, 192] [576, 192] [576]"
  std::string work() const;
  // The output, and the gradients of all inputs that require one.
  std::vector<torch::Tensor> run(const Candidate& candidate, const torch::Tensor& gradient) const;

 private:
  torch::Tensor call(const Candidate& candidate, vernier::Values arguments) const;

  c10::OperatorHandle handle_;
  bool is_attention_;
  vernier::Values arguments_;
};

}  // namespace adaptive
