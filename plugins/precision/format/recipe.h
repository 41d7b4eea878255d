// The recipe of a layer: its quantizers by operand, and its rotations.
#pragma once

#include <vernier/lab/emulated_matmul.h>
#include <vernier/lab/quantizer.h>

#include <array>
#include <memory>
#include <optional>

namespace formats {

using vernier::Slot;
// The slots of products; Recipe has those of weights and averages too.
inline constexpr Slot slots[] = {Slot::y_x, Slot::y_w, Slot::dx_g, Slot::dx_w, Slot::dw_x, Slot::dw_g};
inline constexpr const char* product_names[] = {"y", "dx", "dw"};
using OptionalFormat = std::optional<vernier::TensorFormat>;  // nothing: float32, not rounded

// The source of an operand: the exact one; what it became in y; or the numbers of another product without rounding,
// which are those of y, or for dw.g those of dx.g. automatic: these, where the same quantizer would make them again.
enum class From { automatic, exact, forward, codes };

struct Way {
  std::shared_ptr<vernier::Quantizer> quantizer;  // null: float32
  From from = From::automatic;
};

// Both operands of a product are multiplied along the summed dimension by an orthogonal matrix, which cancels.
struct Rotation {
  std::int64_t size = 0;  // 0: none
  torch::Tensor matrix;   // Hadamard's over sqrt(size); with fixed signs these are in it
};

// How the operands of y = x w, dx = g wᵀ and dw = xᵀ g become what is multiplied. g is the gradient of y.
struct Recipe {
  std::array<Way, vernier::slot_count> ways;
  std::array<Rotation, 3> rotations;  // the rotations of y, dx and dw
  bool draws_signs = false;           // the signs of the rotations are drawn for each product anew
  // Adds up the products of y, dx and dw, if both operands are rounded; nothing: float32 does.
  std::array<std::optional<vernier::MatrixUnit>, 3> units;

  Way& at(Slot slot) { return ways[static_cast<std::size_t>(slot)]; }
  const Way& at(Slot slot) const { return ways[static_cast<std::size_t>(slot)]; }
  static Slot other(Slot slot) { return static_cast<Slot>(static_cast<int>(slot) ^ 1); }  // the product's other one
  const Rotation& rotation(Slot slot) const { return rotations[static_cast<std::size_t>(slot) / 2]; }
  // The slot of which `from` takes the numbers.
  static Slot source(Slot slot) {
    return slot == Slot::dx_w ? Slot::y_w : slot == Slot::dw_x ? Slot::y_x : slot == Slot::dw_g ? Slot::dx_g : slot;
  }
  From from(Slot slot, bool is_weight = false) const;  // never automatic
  bool rounds(Slot slot) const { return at(slot).quantizer != nullptr; }
  bool is_exact() const;  // nothing is rounded
  bool draws() const;     // a product needs a seed
  // Returns the unit of a slot's product, or null.
  const vernier::MatrixUnit* unit(Slot slot) const {
    const auto& own = units[static_cast<std::size_t>(slot) / 2];
    return own && rounds(slot) && rounds(other(slot)) ? &*own : nullptr;
  }
  bool has_unit() const { return units[0] || units[1] || units[2]; }
};

}  // namespace formats
