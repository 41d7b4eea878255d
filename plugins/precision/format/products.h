// Matrix products and convolutions whose operands are rounded to formats, in forward and in backward.
#pragma once

#include <vernier/lab/emulated_matmul.h>

#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <string_view>

#include "delayed.h"
#include "used_codes.h"

namespace formats {

using OptionalFormat = std::optional<vernier::TensorFormat>;  // nothing: float32, not rounded

// How the operands of y = x w, dx = g wᵀ and dw = xᵀ g are rounded. g is the gradient of y.
struct Recipe {
  OptionalFormat x, w;  // formats in y; w also in dx
  OptionalFormat g;     // format in dx
  OptionalFormat x_for_dw, g_for_dw;
  vernier::Draw forward, backward;       // x and w; g
  bool square_weights = false;           // blocks of w are square, so that w and wᵀ have the same codes
  bool refuses_uneven = false;           // blocks that do not divide the reduced dimension
  std::int64_t hadamard = 0;             // both operands of dw are rotated along the summed dimension; 0: no
  torch::Tensor rotation;                // [hadamard, hadamard], orthogonal
  std::optional<DelayedScales> delayed;  // gives the scales of tensors; nothing: the tensor itself does
  std::optional<vernier::ProductAccumulator> accumulator;  // adds up products of two rounded operands; nothing: float32

  // Returns whether the accumulator adds up a product of operands in these formats.
  bool is_emulated(const OptionalFormat& a, const OptionalFormat& b) const { return accumulator && a && b; }
};

// The sums of what rounding did to one operand of a layer in a step.
struct Loss {
  double numbers = 0, squares = 0, errors = 0, saturated = 0, flushed = 0;
  double largest = 0;  // the largest magnitude
  UsedCodes codes;
  std::optional<vernier::NumberFormat> element;  // the format whose codes are counted
};

class Products {
 public:
  explicit Products(Recipe recipe) : recipe_(std::move(recipe)) {}
  const Recipe& recipe() const { return recipe_; }

  // Returns a b in float32. a [..., n, k] and b [..., k, m] of floating-point dtypes; is_weight: b is a layer's weight.
  // Differentiable once.
  static torch::Tensor matmul(const std::shared_ptr<Products>& products, const std::string& layer,
                              const torch::Tensor& a, const torch::Tensor& b, bool is_weight);
  struct Convolution {
    std::vector<std::int64_t> stride, padding, dilation;
    std::int64_t groups = 1;
  };
  // Returns the convolution of input [N, C, ...] and weight [O, C / groups, ...] in float32, without a bias. Blocks lie
  // along the channels, and for the gradient of the weight along the samples. An emulated accumulator adds channel by
  // channel for each position of the kernel, and for the gradient of the weight position by position for each sample.
  static torch::Tensor convolution(const std::shared_ptr<Products>& products, const std::string& layer,
                                   const torch::Tensor& input, const torch::Tensor& weight, const Convolution& shape);

  // Between measure(true) and measure(false), each rounding adds to losses(), by "layer/x", "layer/w" and "layer/g".
  void measure(bool wanted) { measures_ = wanted; }
  std::map<std::string, Loss>& losses() { return losses_; }
  // The scales of recipe.delayed.
  std::optional<DelayedScales>& delayed() { return recipe_.delayed; }
  // "h.0.mlp/x (10)" for operands so far of which the summed numbers are no multiple of the block.
  std::set<std::string> take_uneven() {
    notes_uneven_ = false;
    return std::move(uneven_);
  }

 private:
  friend struct MatmulFunction;
  friend struct ConvolutionFunction;
  enum class Operand { x, w, g };
  // Rounds matrices [..., rows, columns]. summed: the dimension that the product sums over, -1 or -2. Without an
  // accumulator the result is its numbers alone.
  vernier::UnitOperand rounded(const torch::Tensor& x, const std::string& layer, Operand operand,
                               const OptionalFormat& format, int summed, bool is_weight = false);
  // Rounds the weight of a convolution, [O, C / groups, ...].
  vernier::UnitOperand kernel(const torch::Tensor& weight, const std::string& layer, bool is_for_dx);
  void note_uneven(const std::string& name, std::int64_t count, std::int64_t block);
  torch::Tensor rotated(const torch::Tensor& x) const;
  bool rotates() const;
  bool takes_x_again() const;
  bool reuses(const OptionalFormat& first, const OptionalFormat& second, bool is_weight) const;
  void note(const std::string& name, const torch::Tensor& x, const torch::Tensor& y,
            const vernier::TensorFormat& format, vernier::ScaleBlock block, const vernier::Draw& draw);

  Recipe recipe_;
  bool measures_ = false;
  bool records_ = false;    // a gradient is asked for, or comes, of the product in work
  std::uint64_t seed_ = 0;  // the next rounding's, of the product in work
  std::map<std::string, Loss> losses_;
  std::set<std::string> uneven_;
  bool notes_uneven_ = true;  // until they are taken
};

}  // namespace formats
