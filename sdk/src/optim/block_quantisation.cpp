#include "block_quantisation.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>

#include "tensor_lists.h"

namespace vernier {

namespace {

// In each decade, from 1e-7 on, the middles of equal parts of it. As bitsandbytes and torchao have them up to float32's
// last place, in which theirs depend on the processor.
std::array<float, 256> dynamic_numbers(bool is_signed) {
  std::vector<float> numbers{0.0F, 1.0F};
  int parts = is_signed ? 1 : 2;
  for (const double top : {1e-6, 1e-5, 1e-4, 1e-3, 1e-2, 1e-1, 1.0}) {
    for (int i = 0; i < parts; ++i) {
      const auto middle = static_cast<float>(top * (0.1 + 0.9 * (i + 0.5) / parts));
      numbers.push_back(middle);
      if (is_signed) numbers.push_back(-middle);
    }
    parts *= 2;
  }
  std::array<float, 256> all;
  std::ranges::sort(numbers);
  std::ranges::copy(numbers, all.begin());
  return all;
}

// What is stored must not depend on where it was: blocks of a tensor that is not a multiple of them end in zeros.
at::Tensor in_blocks(const at::Tensor& flat) {
  constexpr auto block = BlockQuantisation::block;
  const auto missing = BlockQuantisation::blocks(flat.numel()) * block - flat.numel();
  return (missing == 0 ? flat : at::constant_pad_nd(flat, {0, missing})).view({-1, block});
}

// Of a table that stays: the host waits for no GPU.
at::Tensor on_device(const float* table, std::int64_t size, const at::Device& device) {
  return moved(at::from_blob(const_cast<float*>(table), {size}, at::kFloat), device);
}

}  // namespace

const BlockQuantisation& BlockQuantisation::of(bool is_signed) {
  static const BlockQuantisation with_sign(true), without(false);
  return is_signed ? with_sign : without;
}

BlockQuantisation::BlockQuantisation(bool is_signed) : numbers_(dynamic_numbers(is_signed)) {
  constexpr float infinity = std::numeric_limits<float>::infinity();
  starts_.front() = -infinity;
  starts_.back() = infinity;
  for (std::size_t i = 1; i < numbers_.size(); ++i) {
    starts_[i] = static_cast<float>((static_cast<double>(numbers_[i - 1]) + numbers_[i]) / 2);
  }
  if (!is_signed) starts_[1] = std::numeric_limits<float>::denorm_min();
  least_code_.resize(std::size_t{1} << (32 - dropped_bits));
  for (std::uint32_t i = 0; i < least_code_.size(); ++i) {
    const std::uint32_t first = i << dropped_bits, last = first + (1U << dropped_bits) - 1;
    const float least = std::bit_cast<float>(first >> 31 != 0 ? last : first);
    if (std::isnan(least)) continue;
    const auto next = std::upper_bound(starts_.begin(), starts_.end() - 1, least);
    least_code_[i] = static_cast<std::int32_t>(next - starts_.begin() - 1);
  }
}

// Codes are in 32 bits on the way, so that compilers make vector instructions of the loops.
void BlockQuantisation::pack(const float* from, std::int64_t count, std::uint8_t* codes, float* largest) const {
  for (std::int64_t start = 0; start < count; start += block, from += block, codes += block, ++largest) {
    const auto size = std::min(block, count - start);
    std::int32_t most = 0;  // the bits of magnitudes are ordered as they are, and those of nan come last
    for (std::int64_t i = 0; i < size; ++i) most = std::max(most, std::bit_cast<std::int32_t>(from[i]) & 0x7fffffff);
    *largest = std::bit_cast<float>(most);
    const float divisor = most == 0 ? 1.0F : *largest;
    const auto* const starts = starts_.data() + 1;
    const auto* const least_code = least_code_.data();
    std::int32_t wide[block];
    for (std::int64_t i = 0; i < size; ++i) {
      const float number = from[i] / divisor;
      const std::int32_t code = least_code[std::bit_cast<std::uint32_t>(number) >> dropped_bits];
      wide[i] = code + (number >= starts[code] ? 1 : 0);
    }
    for (std::int64_t i = 0; i < size; ++i) codes[i] = static_cast<std::uint8_t>(wide[i]);
  }
}

void BlockQuantisation::unpack(const std::uint8_t* codes, const float* largest, std::int64_t count, float* to) const {
  for (std::int64_t start = 0; start < count; start += block, codes += block, to += block, ++largest) {
    const auto size = std::min(block, count - start);
    const float most = *largest;
    const auto* const numbers = numbers_.data();
    std::int32_t wide[block];
    for (std::int64_t i = 0; i < size; ++i) wide[i] = codes[i];
    float* __restrict const into = to;
    for (std::int64_t i = 0; i < size; ++i) into[i] = numbers[wide[i]] * most;
  }
}

BlockQuantisation::Packed BlockQuantisation::pack(const at::Tensor& numbers) const {
  const auto rows = in_blocks(numbers);
  const auto largest = rows.abs().amax(-1);
  const auto relative = rows / largest.masked_fill(largest == 0, 1).unsqueeze(-1);
  const auto starts = on_device(starts_.data() + 1, 255, rows.device());
  const auto codes = at::bucketize(relative, starts, /*out_int32=*/true, /*right=*/true).to(at::kByte);
  return {codes.view(-1).slice(0, 0, numbers.numel()), largest};
}

at::Tensor BlockQuantisation::unpack(const Packed& packed) const {
  const auto numbers = on_device(numbers_.data(), 256, packed.codes.device());
  const auto rows = numbers.index({in_blocks(packed.codes).to(at::kInt)}) * packed.largest.unsqueeze(-1);
  return rows.view(-1).slice(0, 0, packed.codes.numel());
}

}  // namespace vernier
