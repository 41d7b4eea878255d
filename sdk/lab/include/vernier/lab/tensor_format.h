// Formats of tensors: a number format, and what shares a scale. Rounds tensors to them.
//
//   auto q = vernier::round_to(x, vernier::tensor_format("bf16"));                       // no scale
//   auto w = vernier::round_to(weight, vernier::tensor_format("mxfp8"), {1, 32});        // 32 of a row share a scale
//   auto g = vernier::round_to(grad, vernier::tensor_format("nvfp4"), {1, 16}, {vernier::Rounding::stochastic, seed});
//
// Rounded numbers are float32, in which a program computes on. On another device than a CPU the numbers are rounded on
// the CPU. No function is differentiable. docs/guides/formats.md has the formats, their rules and sources.
#pragma once

#include <vernier/float8.h>
#include <vernier/lab/number_format.h>

#include <cstdint>
#include <string>
#include <vector>

namespace vernier {

// How the scale of a block comes from its amax, the largest magnitude in it. M is the largest number of the element.
enum class ScaleRule {
  floor,    // 2^(floor(log2 amax) - floor(log2 M)): OCP MX 1.0, section 6.3
  ceil,     // 2^(ceil(log2 amax) - floor(log2 M))
  even,     // like floor, but amax is rounded half up to the element's fraction bits first: torchao's EVEN
  rceil,    // 2^ceil(log2(amax / M)): arXiv 2506.08027
  nearest,  // amax / M, rounded to the format of the scale: for scales with a mantissa
};

struct VERNIER_API TensorFormat {
  std::string name;
  NumberFormat element;
  std::int64_t block = 0;  // numbers along the summed dimension that share a scale; 0: there are no scales; -1: all
  bool has_block_scale = false;  // false: the scale is a float32, or there is none
  NumberFormat scale;            // with has_block_scale: the format of a block's scale
  ScaleRule rule = ScaleRule::nearest;
  bool tensor_scale = false;  // a float32 scale of the tensor besides, so that the largest block scale is used
  float amax = 0;             // with block = -1: the largest magnitude that the scale is for; 0: that of the tensor
  float headroom = 1;         // share of the element's largest number that scales are for: they are divided by it
};

// Returns a format by name: a number format (number_format.h), without scales, or one of block_formats():
//   mxfp8, mxfp8_e5m2, mxfp6, mxfp6_e3m2, mxfp4, mxint8   OCP Microscaling Formats 1.0: blocks of 32, scales e8m0
//   nvfp4                                                 e2m1, blocks of 16, scales e4m3, and one of the tensor
//   bfp8, bfp6, bfp4                                      block floating point: two's complement, blocks of 16, e8m0
// Throws Error with Error::Kind::configuration for another name, and suggests the nearest.
VERNIER_API TensorFormat tensor_format(const std::string& name);
VERNIER_API std::vector<std::string> block_formats();

// Returns the rule by its word. Throws Error for another word.
VERNIER_API ScaleRule scale_rule_named(const std::string& word);

// How numbers are rounded. The random bits of Rounding::stochastic are a function of `seed` and of the place of a
// number in its tensor, so they are the same for any number of threads.
struct Draw {
  Rounding rounding = Rounding::nearest_even;
  std::uint64_t seed = 0;
  int bits = 23;  // 1 to 23
};

// Rounds a floating-point tensor of any strides to float32. A format with scales needs a matrix, or matrices along the
// leading dimensions, and `block`: the rows and columns that share a scale, as of Float8Tensor. Smaller blocks at the
// edges are as if zeros followed. A block with a NaN becomes NaN. Throws Error for other dtypes, and for bits that
// cannot be.
VERNIER_API torch::Tensor round_to(const torch::Tensor& x, const TensorFormat& format, ScaleBlock block = per_tensor,
                                   const Draw& draw = {});

// Returns the numbers of the element in float32, without scales, to which round_to with the same arguments rounds: what
// the codes in memory would be. Throws what round_to throws.
VERNIER_API torch::Tensor element_numbers(const torch::Tensor& x, const TensorFormat& format,
                                          ScaleBlock block = per_tensor, const Draw& draw = {});

}  // namespace vernier
