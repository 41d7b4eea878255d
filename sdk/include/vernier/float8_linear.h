// A linear layer in fp8, y = x wᵀ + b, and the recipes that say how its operands are scaled. In any loop:
//
//   vernier::Float8Linear layer(vernier::float8_recipe("delayed"));
//   auto y = layer.forward(x, weight, bias);  // as at::linear
//   loss.backward(); optimizer.step();
//   layer.update();                           // once an update
//
// Operands are quantised, multiplied, and added up in float32. On a CPU that is emulated: the same numbers, but slower
// than bfloat16; while it multiplies, oneDNN may take other threads' float32 matrices for bfloat16 too. On a GPU of
// compute capability 8.9 (9.0 for rows and blocks) it is at::_scaled_mm.
#pragma once

#include <vernier/float8.h>
#include <vernier/state.h>

#include <memory>
#include <string>

namespace vernier {

// Which operand is quantised how, for the products y = x wᵀ, dx = g w and dw = gᵀ x; g is the gradient of y.
struct Float8Recipe {
  std::string name;
  torch::ScalarType forward_format = torch::kFloat8_e4m3fn;   // of x and w
  torch::ScalarType gradient_format = torch::kFloat8_e4m3fn;  // of g
  ScaleBlock x = per_tensor, w = per_tensor;                  // for y
  ScaleBlock g = per_tensor, w_for_dx = per_tensor;           // for dx
  ScaleBlock g_for_dw = per_tensor, x_for_dw = per_tensor;
  bool dw_in_float8 = true;  // false: dw = gᵀ x of what was given, not quantised
  bool power_of_two_scales = false;
  // delayed: scales are of earlier updates' largest magnitudes, else of the operand itself, now.
  bool delayed = false;
  std::int64_t amax_history_len = 1024;  // updates that are looked back on
  bool most_recent = false;              // of them the last one counts, else the largest
  double margin = 0;                     // scales are divided by 2^margin
};

// A recipe by its name, of Transformer Engine (TE) or torchao (AO), with their defaults:
//   delayed    TE DelayedScaling: a scale a tensor, from the history; hybrid
//   current    TE Float8CurrentScaling, AO tensorwise: a scale a tensor; hybrid
//   rowwise    AO rowwise: a scale a row or column, along what is summed over, powers of two; e4m3
//   rowwise_with_high_precision_grad_weight  AO rowwise_with_gw_hp: the same, w for dx a scale a tensor, dw not in fp8
//   block      TE Float8BlockScaling: x and g 1x128 along what is summed over, w 128x128, powers of two; e4m3
// format: "auto" (what the recipe says above), "hybrid" (E4M3 forward, E5M2 gradients) or "e4m3". "e5m2" for all is
// refused as in TE: two E5M2 operands no GPU multiplies, and two bits are too few for weights; "hybrid" blocks are, for
// LibTorch multiplies blocks of E4M3 alone. Throws Error::Kind::configuration, also for an unknown word.
VERNIER_API Float8Recipe float8_recipe(const std::string& name, const std::string& format = "auto");

// Why a device cannot compute by a recipe, for a sentence that begins with what was wanted ("is for …"); "" where it
// can: on every CPU (emulated), and on GPUs of compute capability 8.9, 9.0 for scales of rows and blocks.
VERNIER_API std::string float8_refusal(const Float8Recipe& recipe, torch::Device device);

// One layer: the scales and histories of its operands, and its quantised weight, kept while that does not change.
// One thread; a graph that it made may outlive it.
class VERNIER_API Float8Linear {
 public:
  // output: dtype of y, and of what x, b and the gradients are rounded to (float32, bfloat16 or float16; on a GPU rows
  // need bfloat16).
  explicit Float8Linear(Float8Recipe recipe, torch::ScalarType output = torch::kBFloat16);
  ~Float8Linear();
  Float8Linear(Float8Linear&&) noexcept;
  Float8Linear& operator=(Float8Linear&&) noexcept;

  // x [..., in], weight [out, in] and bias [out] (or undefined) of any floating-point dtype, weight of any stride.
  // Differentiable once, gradients in the dtypes of what was given. Where no gradient is recorded, histories are left
  // alone. On a GPU in and out must be multiples of 16.
  torch::Tensor forward(const torch::Tensor& x, const torch::Tensor& weight, const torch::Tensor& bias = {});

  // After each update, applied or skipped, of however many pieces: delayed scales move on, as TE's do where one
  // autocast region is an update. A largest magnitude of 0 (a layer that was not used) moves nothing; while the one
  // that counts is inf or nan the scale stays; nan does not count as the largest of a history.
  void update();

  // delayed: histories [amax_history_len, 3] and scales [3] of x, w and g, newest last, row 0 for the update in work,
  // as TE lays them out. Undefined for other recipes.
  const torch::Tensor& amax_history() const;
  const torch::Tensor& scales() const;

  State save() const;  // empty where the recipe is not delayed; no copies
  void load(const State& state);

 private:
  struct Layer;
  friend struct Float8Function;
  std::shared_ptr<Layer> layer_;
};

}  // namespace vernier
