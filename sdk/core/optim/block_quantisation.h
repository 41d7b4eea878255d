// Block-wise dynamic quantization to 8 bits. Source: Dettmers et al., 8-bit Optimizers via Block-wise Quantization,
// ICLR 2022. A block has 256 codes and its largest magnitude in float32. A code stands for one of 256 numbers from -1
// to 1, or from 0 to 1 if unsigned, times that magnitude. The numbers span seven decades, each with twice as many
// numbers as the one below. A value becomes the nearest number. An unsigned value above 0 never becomes 0, since Adam
// would divide a gradient by eps alone if its mean square were 0. A NaN makes its whole block NaN.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

#include "optim/kernels/block_kernel.h"

namespace vernier {

class BlockQuantisation {
 public:
  static constexpr std::int64_t block = codes_in_block;
  static std::int64_t blocks(std::int64_t count) { return (count + block - 1) / block; }
  // Returns the quantization with numbers in [-1, 1], or in [0, 1]. It is made at the first call.
  static const BlockQuantisation& of(bool is_signed);

  const BlockKernel& kernel() const { return kernel_; }  // packs and unpacks on the host

  // By operators, on any device. All tensors are 1-D: numbers float32, codes uint8, one float32 for each block.
  struct Packed {
    at::Tensor codes, largest;
  };
  Packed pack(const at::Tensor& numbers) const;
  at::Tensor unpack(const Packed& packed) const;

 private:
  explicit BlockQuantisation(bool is_signed) : kernel_(is_signed) {}

  BlockKernel kernel_;
};

}  // namespace vernier
