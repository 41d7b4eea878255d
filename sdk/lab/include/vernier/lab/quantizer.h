// The role `quantizer`: how one operand of one product is rounded, or weights and averages that stay, or what a rank
// sends. precision/format makes it from its option `operands`, distributed/ddp from `message`;
// docs/guides/quantizers.md has an example, and what a recipe can be made of.
//
//   class Halves final : public vernier::Quantizer {  // 8 bits, and one scale for 32 numbers
//    public:
//     explicit Halves(vernier::Options&) {}
//     vernier::UnitOperand quantize(const vernier::Operand& of) override {
//       const auto blocks = of.numbers.unflatten(-1, {-1, 32});
//       const auto scale = blocks.abs().amax(-1, true).div(127).clamp_min(1e-30);
//       return {blocks.div(scale).round().mul(scale).flatten(-2)};
//     }
//     std::int64_t multiple() const override { return 32; }
//   };
//   VERNIER_PLUGIN(Halves, "halves", "1.0.0")
#pragma once

#include <vernier/draft/message_rounding.h>
#include <vernier/lab/emulated_matmul.h>
#include <vernier/plugin.h>

#include <cstdint>
#include <string>

namespace vernier {

// The operands of y = x w, dx = g wᵀ and dw = xᵀ g, where g is the gradient of y. weight and state are no operands:
// each update rounds the weights themselves, and the averages of the optimizer. message: a gradient that a rank sends.
enum class Slot { y_x, y_w, dx_g, dx_w, dw_x, dw_g, weight, state, message };
inline constexpr int slot_count = 8;           // precision/format has all but message
VERNIER_API const char* slot_name(Slot slot);  // "dx.g"

// One operand of one product.
struct VERNIER_API Operand {
  // float32 [..., rows, summed]: the product sums over the last dimension. Exact, or with from = "forward" what the
  // operand became in y. Perhaps a view, and perhaps the layer's own memory: it must not change.
  torch::Tensor numbers;
  Slot slot = Slot::y_x;
  std::string key;                 // "h.0.mlp.c_fc/dw.g", for what is kept from one step to the next
  bool is_weight = false;          // the operand is a layer's parameter
  bool is_recorded = false;        // the call is one of training: it may count for a history
  bool is_turned = false;          // `numbers` is a transposed view of the tensor that the layer has
  bool is_for_unit = false;        // an emulated unit adds up the products: the scale of the tensor may stay outside
  std::uint64_t seed = 0;          // the seed of this call, the same in a resumed run
  std::uint64_t product_seed = 0;  // the same for all operands of one call of a layer
};

// One object serves all layers and products that its table in the TOML stands for. All calls are on one thread.
class VERNIER_API Quantizer : public Plugin, public draft::MessageRounding {
 public:
  static constexpr const char* role = "quantizer";
  ~Quantizer() override;

  // Returns numbers of the operand's shape, in float32. A result with a scale stands for numbers times scale.
  virtual UnitOperand quantize(const Operand& of) = 0;
  // The size of the summed dimension must be a multiple of this. If it is not, quantize() gets zeros behind the
  // numbers, and what it returns for them is cut off.
  virtual std::int64_t multiple() const;
  // Returns the gradient of of.numbers from that of what quantize() returned. Only the operands of y are asked, and
  // only with has_gradient(). Else the gradient passes as if nothing had been rounded.
  virtual bool has_gradient() const;
  virtual torch::Tensor gradient(const Operand& of, const torch::Tensor& of_result);
  // True if the numbers of one product serve another one that sums over the other dimension, so need not be made twice.
  virtual bool serves_both(bool is_weight) const;
  virtual bool draws() const;        // false: it takes no seed, so none is drawn for it
  virtual bool is_unbiased() const;  // true: the mean over the seeds is the operand; precision/format tries it
  void end_update() override;        // after each update, on all ranks

  // Calls quantize() with rows that are filled up to a multiple(). Throws Error with Error::Kind::plugin if the result
  // is not float32 of the operand's shape.
  UnitOperand rounded(Operand of);
  // Calls rounded() with the rows of a gradient as Slot::message.
  torch::Tensor message_of(const torch::Tensor& numbers, const std::string& key, std::uint64_t seed) final;
};

// Reads a quantizer's option `format`: a format by name. Refuses one of scales.
VERNIER_API TensorFormat read_format(Options& options);

// Numbers from 0 to 1, without 1, as a function of the seed and the place.
VERNIER_API torch::Tensor uniform_like(const torch::Tensor& x, std::uint64_t seed);

}  // namespace vernier
