// mfu: the floating-point operations of a model's products; see mfu.cpp.
#pragma once

#include <vernier/layers.h>

#include <map>
#include <string_view>

namespace vernier {

// A multiplication and an addition are two operations.
struct Flops {
  double forward = 0;
  double backward = 0;  // forward's operations once for each operand that needs a gradient
};

// Those of one call of a product, a convolution, attention or a recurrent layer: its arguments by its schema, and its
// first result. 0 for other operators: their work is small beside that of products.
Flops flops_of(std::string_view name, const Values& arguments, const torch::Tensor& result);

// Sums the products of a forward pass, and of what is computed again in backward only the gradients' part.
class FlopCounter final : public Interceptor {
 public:
  bool changes(std::string_view) const override { return false; }
  Values call(const Operation& operation, Values arguments) override;

  void begin_forward();  // from 0
  void end_forward() { is_forward_ = false; }
  double flops() const { return flops_; }
  // The type in which most of them were computed: that of the results. Undefined if there were none.
  torch::ScalarType dtype() const;

 private:
  double flops_ = 0;
  std::map<torch::ScalarType, double> by_dtype_;
  bool is_forward_ = false;
};

}  // namespace vernier
