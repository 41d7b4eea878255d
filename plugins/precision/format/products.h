// Matrix products and convolutions whose operands are rounded to formats, in forward and in backward.
#pragma once

#include <torch/csrc/autograd/custom_function.h>
#include <vernier/lab/emulated_matmul.h>

#include <cmath>
#include <deque>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <string_view>

#include "recipe.h"
#include "rounding.h"
#include "used_codes.h"

namespace formats {

// The sums of what rounding did to one operand of a layer in a step.
struct Loss {
  double numbers = 0, squares = 0, errors = 0, saturated = 0, flushed = 0;
  double largest = 0;  // the largest magnitude
  // Blocks, and those with a number at the largest of the element. The largest magnitudes of blocks that are not 0.
  double blocks = 0, full_blocks = 0, most_of_block = 0, least_of_block = HUGE_VAL;
  UsedCodes codes;
  std::optional<vernier::NumberFormat> element;  // the format whose codes are counted
};

class Products {
 public:
  // Returns a b in float32. a [..., n, k] and b [..., k, m] of floating-point dtypes; is_weight: b is a layer's weight.
  // Differentiable once. The recipe lives as long as `products`.
  static torch::Tensor matmul(const std::shared_ptr<Products>& products, const Recipe& recipe, const std::string& layer,
                              const torch::Tensor& a, const torch::Tensor& b, bool is_weight);
  struct Convolution {
    std::vector<std::int64_t> stride, padding, dilation;
    std::int64_t groups = 1;
  };
  // Returns the convolution of input [N, C, ...] and weight [O, C / groups, ...] in float32, without a bias. Blocks lie
  // along the channels, and for the gradient of the weight along the samples. A matrix unit adds channel by
  // channel for each position of the kernel, and for the gradient of the weight position by position for each sample.
  // Of the rotations only that of dw applies.
  static torch::Tensor convolution(const std::shared_ptr<Products>& products, const Recipe& recipe,
                                   const std::string& layer, const torch::Tensor& input, const torch::Tensor& weight,
                                   const Convolution& shape);

  // Between measure(true) and measure(false), each rounding adds to losses(), by "layer/x", "layer/w" and "layer/g".
  void measure(bool wanted) { measures_ = wanted; }
  std::map<std::string, Loss>& losses() { return losses_; }
  // "h.0.mlp/x (10)" for operands so far of which the summed numbers are no multiple of the block.
  std::set<std::string> take_uneven() {
    notes_uneven_ = false;
    return std::move(uneven_);
  }
  std::deque<Recipe>& recipes() { return recipes_; }

 private:
  friend struct MatmulFunction;
  friend struct ConvolutionFunction;
  // One call of a layer, in forward and in backward.
  struct Call {
    const Recipe* recipe;
    std::string layer;
    bool is_recorded;  // a gradient is asked for, or comes
    std::uint64_t product_seed;
    std::uint64_t seed = product_seed;  // the next rounding's
  };
  struct Held;
  static Call begin(const Recipe& recipe, const std::string& layer, bool is_recorded);
  static c10::intrusive_ptr<Held> held_in(torch::autograd::AutogradContext* context);

  // Matrices [..., rows, columns] as an operand. summed: the dimension that the product sums over, -1 or -2.
  static vernier::Operand operand(const Call& call, const torch::Tensor& x, Slot slot, int summed, bool is_weight);
  // Rounds matrices. Without a matrix unit only `numbers` of the result is defined.
  vernier::UnitOperand rounded(Call& call, const torch::Tensor& x, Slot slot, int summed, bool is_weight = false);
  // The operand of dx or dw that y has too: exact is the tensor, and in_y what it became there.
  vernier::UnitOperand again(Call& call, const torch::Tensor& exact, const vernier::UnitOperand& in_y, Slot slot,
                             int summed, bool is_weight);
  // The gradient of an operand of y, as its quantizer passes it.
  static torch::Tensor passed(const Call& call, const torch::Tensor& x, const torch::Tensor& gradient, Slot slot,
                              int summed, bool is_weight);
  // Rounds the weight of a convolution, [O, C / groups, ...].
  vernier::UnitOperand kernel(Call& call, const torch::Tensor& weight, Slot slot);
  void note(const std::string& name, const torch::Tensor& x, const torch::Tensor& y, const FormatQuantizer* own,
            int summed);

  std::deque<Recipe> recipes_;  // by the layers that have one of their own; the first is that of all others
  bool measures_ = false;
  std::map<std::string, Loss> losses_;
  std::set<std::string> uneven_;
  bool notes_uneven_ = true;  // until they are taken
};

}  // namespace formats
