// Attention in blocks in the place of LibTorch's, on processors with AVX-512.
#pragma once

#include <torch/library.h>

namespace vernier {

// Registers, in the place of LibTorch's CPU kernels for scaled_dot_product_attention without dropout, forward and
// backward, such that work in blocks where fused_kernels() is true. Products are oneDNN's, on blocks that stay in the
// cache: bfloat16 in bfloat16 where the processor multiplies it, everything else in float32. A thread takes whole
// heads, or 512 queries of one, so the bits do not depend on the number of threads.
void register_blocked_attention(torch::Library& library);

// True if they are in use, so that scaled_dot_product_attention is fast in any dtype.
bool has_blocked_attention();

}  // namespace vernier
