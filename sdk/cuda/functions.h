// The functions of the library's table, as library.h says.
#pragma once

#include "../core/gpu/library.h"

namespace vernier::gpu {

Trouble adam(const AdamOptions& options, Averages averages, const Tensor* tensors, std::int64_t count, Gate gate,
             void* scratch, Stream stream);
Trouble lion(const LionOptions& options, const Tensor* tensors, std::int64_t count, Gate gate, Stream stream);
Trouble sgd(const SGDOptions& options, const Tensor* tensors, std::int64_t count, Gate gate, Stream stream);

std::int64_t inspection_scratch(const Numbers* tensors, std::int64_t count);
Trouble inspect(const Numbers* tensors, std::int64_t count, const Inspection& to, Stream stream);

Trouble cast_to_float8(const Float8Cast& cast, Stream stream);
Trouble transpose_bytes(const std::uint8_t* from, std::int64_t rows, std::int64_t columns, std::uint8_t* to,
                        Stream stream);

Trouble softmax_sums(const SoftmaxSums& rows, Stream stream);
Trouble softmax_slopes(const SoftmaxSlopes& rows, Stream stream);

Trouble norm(const NormRows& rows, Stream stream);
Trouble norm_slopes(const NormSlopes& rows, Stream stream);

Trouble multiply(const Product& product, Stream stream);

Trouble round_weights(const Rounding& how, const RoundedWeight* weights, std::int64_t count, Stream stream);

}  // namespace vernier::gpu
