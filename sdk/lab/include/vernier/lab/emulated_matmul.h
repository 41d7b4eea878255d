// Matrix products as a matrix unit adds them up, on a CPU and bit for bit.
//
//   const auto e4m3 = vernier::tensor_format("e4m3");
//   auto unit = vernier::matrix_unit("h100", /*bits=*/8);
//   unit.promote_every = 128;
//   auto y = vernier::emulated_matmul(vernier::round_to(x, e4m3), vernier::round_to(w, e4m3), unit);
//
// The arithmetic of Sum::aligned, for one element of the result. The sum s starts at +0; products are taken in the
// order of k.
//   1. A step takes the next `chunk` products a[k] b[k], fewer at the end. Each has the exponent e(a[k]) + e(b[k]). The
//      largest exponent of the products that are not 0, and of s if it is not 0, is E.
//   2. Each product and s is cut toward zero to a multiple of 2^(E - fraction). These are added exactly.
//   3. With r the lesser of `fraction` and 23, the result is cut toward zero to 1 + r significant bits, and to a
//   multiple
//      of 2^(-126 - r). A result of 2^128 or more is an infinity. A zero is +0. The result is the new s. With is_half
//      it is rounded to float16 instead, to nearest, ties to even.
//   4. After each `promote_every` products, and at the end, s is added to a float32 total, rounded to nearest, ties to
//      even, and starts at +0 again. With promote_every = 0 the result is s itself.
// e(x) is floor(log2 |x|), or the operand's least exponent if that is larger: hardware does not normalise subnormal
// codes. e(s) is floor(log2 |s|), at least -126. A step with an infinity or a NaN is computed as in IEEE 754: s becomes
// NaN for a NaN, for infinity times 0 and for infinities of both signs, else the infinity.
//
// docs/guides/formats.md says which units were compared with which hardware, and has the sources. No function is
// differentiable. A function may be called on any thread; it computes on LibTorch's, and the bits do not depend on
// their number.
#pragma once

#include <vernier/lab/tensor_format.h>

#include <cstdint>
#include <string>

namespace vernier {

struct VERNIER_API MatrixUnit {
  // How a step adds its products and the sum so far. All but aligned have one rule each, and no fraction bits to
  // choose. "Flushed" is: subnormal inputs and results are 0.
  enum class Sum {
    aligned,        // NVIDIA's, as above
    pairwise,       // CDNA2: ((p0 + p1) + (p2 + p3)) + s in float32, flushed
    floored,        // CDNA3: products cut to 24 bits; their sum is rounded down to 31 bits and s to 24, then to nearest
    floored_twice,  // CDNA3's fp8: products at even and odd places apart, each sum rounded down to 24 bits
    fma_pairs,      // vdpbf16ps: fma(a0, b0, fma(a1, b1, s)), flushed
    even_odd,       // tdpbf16ps, tdpfp16ps: even and odd places by fma from 0, then s + (even + odd), flushed
    to_odd,         // bfdot without extended behaviour: s + (p0 + p1), each rounded to odd, flushed
    // B200's for nvfp4 and mxfp4: 16 products are added exactly and multiplied by their block scales. With E the
    // largest exponent of these pairs of scales and of s, at least -126, each is cut toward zero to a multiple of 2^(E
    // - 35).
    block_scaled,
  };
  int fraction = 13;               // aligned: fraction bits of a step, 1 to 31
  std::int64_t chunk = 32;         // products that one step adds, 1 to 1024
  std::int64_t promote_every = 0;  // products after which the sum goes to the total, a multiple of chunk; 0: never
  bool is_half = false;            // aligned: the result of a step is float16
  Sum sum = Sum::aligned;

  // Throws Error with Error::Kind::configuration for values out of range, and says which are possible.
  void check() const;
};

// Returns the rule by which a processor multiplies formats of so many bits: v100, a100, ada, h100, b200, cdna2, cdna3,
// amx, avx512_bf16 or arm_bfdot. The unit multiplies a shorter format as the next longer one it takes; 4 bits are nvfp4
// and mxfp4. Throws Error with Error::Kind::configuration for another name, and for formats with more bits than it
// takes.
VERNIER_API MatrixUnit matrix_unit(const std::string& name, int bits);

// An operand as a matrix unit gets it. The scale that the whole tensor shares stays outside of the unit. Block scales
// are inside, as part of the numbers, or outside: then the sum of each promotion is multiplied by them.
struct VERNIER_API UnitOperand {
  torch::Tensor numbers;               // float32, of the rounded tensor's shape
  torch::Tensor least_exponents = {};  // int16, of the shape of numbers or 0-dim; undefined: no number has one
  torch::Tensor scale = {};            // float32, 0-dim: a factor of the result; undefined: 1
  torch::Tensor block_scales = {};     // float32, of the shape of numbers: scales outside of the unit; undefined: none
  torch::Tensor inner_scales = {};     // the same, of scales that are a part of numbers: for Sum::block_scaled
};

// Returns an operand whose numbers are the results of change(numbers). If each number has a least exponent or scales of
// its own, these are changed in the same way.
template <class Change>
UnitOperand mapped(const UnitOperand& x, const Change& change) {
  const auto each = [&](const torch::Tensor& of) { return of.defined() && of.dim() != 0 ? change(of) : of; };
  return {change(x.numbers), each(x.least_exponents), x.scale, each(x.block_scales), each(x.inner_scales)};
}

// Returns the numbers times their scales, for a product in float32.
inline torch::Tensor value(const UnitOperand& x) {
  const auto y = x.block_scales.defined() ? x.numbers * x.block_scales : x.numbers;
  return x.scale.defined() ? y * x.scale : y;
}

// Rounds a tensor as round_to does, to numbers that times `scale` are those of round_to, up to the rounding of this
// multiplication. Least exponents are those of the element's least normal number, times the block's scale; a
// fixed-point element has that of its largest number, and a posit none. Blocks whose scales are float32 have them
// outside. Throws what round_to throws.
VERNIER_API UnitOperand unit_operand(const torch::Tensor& x, const TensorFormat& format, ScaleBlock block = per_tensor,
                                     const Draw& draw = {});

// Returns a b in float32: a [..., n, k] and b [..., k, m], whose leading dimensions broadcast as at::matmul's do. The
// result is multiplied by the scale of a, then by that of b. Numbers are float32 of any strides, with at most 24
// significant bits. Vector instructions multiply operands of at most 24 significant bits together, for aligned sums of
// up to 25 fraction bits; other sums take about 30 times as long. Block scales need promotions that lie within the
// blocks: the total becomes fma(s, scale of a * scale of b, total). Sum::block_scaled needs blocks of multiples of 16.
// Tensors of another device are multiplied on the CPU. Throws Error for other dtypes, for shapes and blocks that do not
// fit and for a unit that cannot be.
VERNIER_API torch::Tensor emulated_matmul(const UnitOperand& a, const UnitOperand& b, const MatrixUnit& unit);
// The same, of float32 tensors without scales and least exponents.
VERNIER_API torch::Tensor emulated_matmul(const torch::Tensor& a, const torch::Tensor& b, const MatrixUnit& unit);

}  // namespace vernier
