// Attention by matrix products, for cases in which this is faster than LibTorch's kernel.
#pragma once

#include <vernier/abi.h>
#include <vernier/tensor.h>

#include <optional>

namespace vernier {

// Computes softmax(query keyᵀ * scale + mask) value, as torch.scaled_dot_product_attention defines it, with two matrix
// products and a softmax. In bfloat16 on CPUs with AMX and for short sequences, it takes a fraction of the time of
// LibTorch's kernel. Its memory grows with the square of the sequence length.
//   query [..., L, E]; key and value [..., S, E]: floating-point, of one dtype, which the result has too
//   mask     broadcast to [..., L, S]: bool (true: attend), or numbers that are added to the scores; undefined: none
//   dropout  probability, also applied in evaluation mode
//   scale    1/sqrt(E) by default
// A row whose mask allows nothing gives 0. The softmax sums in float32. The function is differentiable, works under
// autocast, and may be called on any thread.
VERNIER_API torch::Tensor attention_by_matmul(const torch::Tensor& query, const torch::Tensor& key,
                                              const torch::Tensor& value, const torch::Tensor& mask = {},
                                              double dropout = 0.0, bool is_causal = false,
                                              std::optional<double> scale = std::nullopt);

}  // namespace vernier
