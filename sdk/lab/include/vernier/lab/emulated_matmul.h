// Matrix products as a matrix unit with a short accumulator computes them, on a CPU and bit for bit.
//
//   const auto e4m3 = vernier::tensor_format("e4m3");
//   auto y = vernier::emulated_matmul(vernier::round_to(x, e4m3), vernier::round_to(w, e4m3),
//                                     {.mantissa = 13, .promote_every = 128});   // Hopper's unit, with promotion
//
// The arithmetic, for one element of the result. The accumulator s starts at +0; products are taken in the order of k.
//   1. A step takes the next `chunk` products a[k] b[k], fewer at the end. Each has the exponent e(a[k]) + e(b[k]). The
//      largest exponent of the products that are not 0, and of s if it is not 0, is E.
//   2. Each product and s is cut toward zero to a multiple of 2^(E - mantissa). These are added exactly.
//   3. The sum is cut toward zero to 1 + mantissa significant bits, and to a multiple of 2^(-126 - mantissa). A sum of
//      2^128 or more is an infinity. A zero is +0. The result is the new s.
//   4. After each `promote_every` products, and at the end, s is added to a float32 total, rounded to nearest, ties to
//      even, and starts at +0 again. With promote_every = 0 the result is s itself.
// e(x) is floor(log2 |x|), or the operand's least exponent if that is larger: hardware does not normalise subnormal
// codes. e(s) is floor(log2 |s|), at least -126. A step with an infinity or a NaN is computed as in IEEE 754: s becomes
// NaN for a NaN, for infinity times 0 and for infinities of both signs, else the infinity.
//
// Sources: MMA-Sim (arXiv 2511.10909), whose units of Hopper and Ada for fp8 these are, with 13 bits and chunks of 32
// and 16; DeepSeek-V3 (arXiv 2412.19437) for the promotion. No function is differentiable. A function may be called on
// any thread; it computes on LibTorch's, and the bits do not depend on their number.
#pragma once

#include <vernier/lab/tensor_format.h>

#include <cstdint>

namespace vernier {

struct VERNIER_API ProductAccumulator {
  int mantissa = 13;               // fraction bits of the accumulator, 1 to 23
  std::int64_t chunk = 32;         // products that one step adds, 1 to 1024
  std::int64_t promote_every = 0;  // products after which the sum goes to the total, a multiple of chunk; 0: never

  // Throws Error with Error::Kind::configuration for values out of range, and says which are possible.
  void check() const;
};

// An operand as a matrix unit gets it. The scale that the whole tensor shares stays outside of the unit, and block
// scales are inside.
struct VERNIER_API UnitOperand {
  torch::Tensor numbers;               // float32, of the rounded tensor's shape
  torch::Tensor least_exponents = {};  // int16, of the shape of numbers or 0-dim; undefined: no number has one
  torch::Tensor scale = {};            // float32, 0-dim: a factor of the result; undefined: 1
};

// Rounds a tensor as round_to does, to numbers that times `scale` are those of round_to, up to the rounding of this
// multiplication. Least exponents are those of the element's least normal number, times the block's scale; a
// fixed-point element has that of its largest number, and a posit none. Throws what round_to throws, and Error for
// blocks whose scales are float32, because no unit multiplies by such a scale.
VERNIER_API UnitOperand unit_operand(const torch::Tensor& x, const TensorFormat& format, ScaleBlock block = per_tensor,
                                     const Draw& draw = {});

// Returns a b in float32: a [..., n, k] and b [..., k, m], whose leading dimensions broadcast as at::matmul's do. The
// result is multiplied by the scale of a, then by that of b. Numbers are float32 of any strides, with at most 24
// significant bits. Operands of at most 24 significant bits together are multiplied by vector instructions, others one
// by one, which is about 30 times slower. Tensors of another device are multiplied on the CPU. Throws Error for other
// dtypes, for shapes that do not fit and for an accumulator that cannot be.
VERNIER_API torch::Tensor emulated_matmul(const UnitOperand& a, const UnitOperand& b,
                                          const ProductAccumulator& accumulator);
// The same, of float32 tensors without scales and least exponents.
VERNIER_API torch::Tensor emulated_matmul(const torch::Tensor& a, const torch::Tensor& b,
                                          const ProductAccumulator& accumulator);

}  // namespace vernier
