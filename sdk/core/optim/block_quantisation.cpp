#include "block_quantisation.h"

#include <ATen/ATen.h>

#include "tensor_lists.h"

namespace vernier {

namespace {

// The stored values must not depend on their place: blocks of a tensor that is not a multiple of them end in zeros.
at::Tensor in_blocks(const at::Tensor& flat) {
  constexpr auto block = BlockQuantisation::block;
  const auto missing = BlockQuantisation::blocks(flat.numel()) * block - flat.numel();
  return (missing == 0 ? flat : at::constant_pad_nd(flat, {0, missing})).view({-1, block});
}

// Returns a copy of a table that stays in memory, so the host does not wait for a GPU.
at::Tensor on_device(const float* table, std::int64_t size, const at::Device& device) {
  return moved(at::from_blob(const_cast<float*>(table), {size}, at::kFloat), device);
}

}  // namespace

const BlockQuantisation& BlockQuantisation::of(bool is_signed) {
  static const BlockQuantisation with_sign(true), without(false);
  return is_signed ? with_sign : without;
}

BlockQuantisation::Packed BlockQuantisation::pack(const at::Tensor& numbers) const {
  const auto rows = in_blocks(numbers);
  const auto largest = rows.abs().amax(-1);
  const auto relative = rows / largest.masked_fill(largest == 0, 1).unsqueeze(-1);
  const auto starts = on_device(kernel_.starts().data() + 1, 255, rows.device());
  const auto codes = at::bucketize(relative, starts, /*out_int32=*/true, /*right=*/true).to(at::kByte);
  return {codes.view(-1).slice(0, 0, numbers.numel()), largest};
}

at::Tensor BlockQuantisation::unpack(const Packed& packed) const {
  const auto numbers = on_device(kernel_.numbers().data(), 256, packed.codes.device());
  const auto rows = numbers.index({in_blocks(packed.codes).to(at::kInt)}) * packed.largest.unsqueeze(-1);
  return rows.view(-1).slice(0, 0, packed.codes.numel());
}

}  // namespace vernier
