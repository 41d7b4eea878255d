// LayerNorm and softmax over dense rows of float32, for processors with AVX-512 (has_avx512() in attention_kernel.h).
#pragma once

#include <cstdint>

namespace vernier {

struct Rows {
  std::int64_t count, columns;
};

// y = (x - mean) / root of (variance + eps), times weight, plus bias, both of which may be missing. inverse: of the
// root.
void layer_norm_rows(Rows rows, const float* x, const float* weight, const float* bias, float eps, float* y,
                     float* means, float* inverses);
// y = x - log of the sum of e^x, or its e^.
void log_softmax_rows(Rows rows, const float* x, float* y);
void softmax_rows(Rows rows, const float* x, float* y);
void log_softmax_rows_backward(Rows rows, const float* dy, const float* y, float* dx);

}  // namespace vernier
