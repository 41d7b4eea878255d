// A linear layer in fp8, y = x wᵀ + b, and recipes that define how its operands are scaled. In any loop:
//
//   vernier::Float8Linear layer(vernier::float8_recipe("delayed"));
//   auto y = layer.forward(x, weight, bias);  // like at::linear
//   loss.backward(); optimizer.step();
//   layer.update();                           // after each update
//
// The layer quantizes the operands, multiplies them, and sums in float32. On a CPU fp8 is emulated: the numbers are the
// same, but it is slower than bfloat16. During an emulated product, oneDNN may compute float32 products of other
// threads in bfloat16 too. On a GPU the layer calls at::_scaled_mm, which needs compute capability 8.9, or 9.0 for
// scales of rows and blocks.
#pragma once

#include <vernier/float8.h>
#include <vernier/state.h>

#include <memory>
#include <string>

namespace vernier {

// How the operands of the products y = x wᵀ, dx = g w and dw = gᵀ x are quantized. g is the gradient of y.
struct Float8Recipe {
  std::string name;
  torch::ScalarType forward_format = torch::kFloat8_e4m3fn;   // format of x and w
  torch::ScalarType gradient_format = torch::kFloat8_e4m3fn;  // format of g
  ScaleBlock x = per_tensor, w = per_tensor;                  // operands of y
  ScaleBlock g = per_tensor, w_for_dx = per_tensor;           // operands of dx
  ScaleBlock g_for_dw = per_tensor, x_for_dw = per_tensor;    // operands of dw
  bool dw_in_float8 = true;                                   // false: dw = gᵀ x without quantization
  bool power_of_two_scales = false;
  // true: scales come from the largest magnitudes of earlier updates; false: from the operand itself.
  bool delayed = false;
  std::int64_t amax_history_len = 1024;  // number of updates in the history
  bool most_recent = false;              // true: the newest entry of the history counts; false: the largest
  double margin = 0;                     // scales are divided by 2^margin
};

// Returns a recipe of Transformer Engine (TE) or torchao (AO) by name, with the defaults of its source:
//   delayed    TE DelayedScaling: one scale for a tensor, from the history; hybrid
//   current    TE Float8CurrentScaling, AO tensorwise: one scale for a tensor; hybrid
//   rowwise    AO rowwise: one scale for each row or column along the summed dimension, powers of two; e4m3
//   rowwise_with_high_precision_grad_weight  AO rowwise_with_gw_hp: as rowwise, but w for dx has one scale and dw is
//              not computed in fp8
//   block      TE Float8BlockScaling: x and g 1x128 along the summed dimension, w 128x128, powers of two; e4m3
// format: "auto" (as listed above), "hybrid" (E4M3 forward, E5M2 gradients) or "e4m3". Throws
// Error::Kind::configuration for other words. "e5m2" is refused as in TE: no GPU multiplies two E5M2 operands, and two
// bits are too few for weights. "hybrid" is refused for blocks, because LibTorch multiplies only E4M3 blocks.
VERNIER_API Float8Recipe float8_recipe(const std::string& name, const std::string& format = "auto");

// Returns why a device cannot compute with a recipe, or "" if it can. The reason completes a sentence whose subject is
// the refused setting: "is for CUDA devices, …". All CPUs can, by emulation. GPUs can from compute capability 8.9 on,
// or 9.0 for scales of rows and blocks.
VERNIER_API std::string float8_refusal(const Float8Recipe& recipe, torch::Device device);

// The state of one layer: the scales and histories of its operands, and its quantized weight, which is reused until the
// weight changes. Use it on one thread. A graph that it recorded may outlive it.
class VERNIER_API Float8Linear {
 public:
  // output: the dtype of y, to which x, b and the gradients are rounded too: float32, bfloat16 or float16. On a GPU,
  // scales of rows need bfloat16. Throws Error for other dtypes.
  explicit Float8Linear(Float8Recipe recipe, torch::ScalarType output = torch::kBFloat16);
  ~Float8Linear();
  Float8Linear(Float8Linear&&) noexcept;
  Float8Linear& operator=(Float8Linear&&) noexcept;

  // Computes y from x [..., in], weight [out, in] and bias [out] (or undefined) of any floating-point dtypes and
  // strides. It is differentiable once; gradients have the dtypes of the arguments. Histories change only if gradients
  // are recorded. On a GPU, `in` and `out` must be multiples of 16. Throws Error if the shapes do not match.
  torch::Tensor forward(const torch::Tensor& x, const torch::Tensor& weight, const torch::Tensor& bias = {});

  // Call it after each update, applied or skipped, whatever the number of micro-batches. It computes the next delayed
  // scales, as TE does if one autocast region is one update. A largest magnitude of 0 changes nothing: the layer was
  // not used. If the magnitude that counts is inf or NaN, the scale stays. The largest of a history ignores NaN.
  void update();

  // "amax_history" [amax_history_len, 3] and "scales" [3] of x, w and g, which it shares; empty if the recipe is not
  // delayed. The layout is TE's: row 0 belongs to the current update, and the last row is the newest finished one.
  State state_dict() const;
  void load_state_dict(const State& state);  // copies; throws Error if the history has another length

 private:
  struct Layer;
  friend struct Float8Function;
  std::shared_ptr<Layer> layer_;
};

}  // namespace vernier
