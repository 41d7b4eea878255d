// What precision/adaptive may choose from for an operation, and how one is measured.
#pragma once

#include <torch/types.h>
#include <vernier/precision_rules.h>

#include <string>
#include <vector>

namespace adaptive {

using Use = vernier::PrecisionRule::Use;
using Kernel = vernier::PrecisionRule::Kernel;

constexpr const char* attention = "scaled_dot_product_attention";

// What an operation may compute in.
struct Candidate {
  Use use;
  Kernel kernel;
  bool operator==(const Candidate&) const = default;
};

const char* name_of(Use use);
const char* name_of(Kernel kernel);
Use use_named(const std::string& name);
std::string text_of(const Candidate& candidate);

// Of one candidate in one place, in the last step that was measured.
struct Measured {
  double error = 0;      // relative, the worst of outputs and gradients
  double cosine = 1;     // the least
  double underflow = 0;  // share of numbers that are 0 and are not in float32, the largest
  bool overflows = false;
};

// The distance of what a candidate gave from what float32 gave.
void compare(const torch::Tensor& got, const torch::Tensor& exact, Measured& into);

// One operation as it was called, to be run again by itself when its gradient is known.
class Repeated {
 public:
  Repeated(const vernier::Operation& operation, const vernier::Values& arguments);
  // "linear [2048, 192] [576, 192] [576]"
  std::string work() const;
  // The output and the gradients of what has one.
  std::vector<torch::Tensor> run(const Candidate& candidate, const torch::Tensor& gradient) const;

 private:
  torch::Tensor call(const Candidate& candidate, vernier::Values arguments) const;

  c10::OperatorHandle handle_;
  bool is_attention_;
  vernier::Values arguments_;
};

}  // namespace adaptive
