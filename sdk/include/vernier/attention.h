// Attention by hand, where that is faster than LibTorch's kernel.
#pragma once

#include <torch/types.h>
#include <vernier/abi.h>

#include <optional>

namespace vernier {

// softmax(query key^T * scale + mask) value, as torch.scaled_dot_product_attention has it, by two products and a softmax.
// On CPUs with AMX, in bfloat16 and at short lengths, that takes a fraction of the time of LibTorch's kernel; but its
// memory grows with the square of the length. query [..., L, E], key and value [..., S, E]; mask: bool (true: look) or
// added to the products, broadcast to [..., L, S], or undefined; scale: 1/sqrt(E) by default. A row that may look at
// nothing gives 0. Differentiable, any thread, under autocast too; the softmax sums in float32.
VERNIER_API torch::Tensor attention_by_matmul(const torch::Tensor& query, const torch::Tensor& key,
                                              const torch::Tensor& value, const torch::Tensor& mask = {},
                                              double dropout = 0.0, bool is_causal = false,
                                              std::optional<double> scale = std::nullopt);

}  // namespace vernier
