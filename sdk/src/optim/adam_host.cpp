#include "adam_host.h"

#include <ATen/Version.h>
#include <torch/types.h>

#include <algorithm>

#include "block_quantisation.h"
#include "parallel.h"

namespace vernier {

namespace {

constexpr std::int64_t chunk = 4096;  // elements: whole blocks, and whole vectors

void update_chunk(AdamState kept_in, Rounding rounding, const HostTensor& all, std::int64_t start) {
  const auto count = std::min(chunk, all.count - start);
  auto* parameter = all.parameter + start;
  const auto* gradient = all.gradient + start;
  if (kept_in == AdamState::full) {
    return adam_update(rounding, all.numbers, count, parameter, gradient, static_cast<float*>(all.exp_avg) + start,
                       static_cast<float*>(all.exp_avg_sq) + start);
  }
  if (kept_in == AdamState::bfloat16) {
    return adam_update_bfloat16(rounding, all.numbers, all.noise, static_cast<std::uint32_t>(start), count, parameter,
                                gradient, static_cast<std::uint16_t*>(all.exp_avg) + start,
                                static_cast<std::uint16_t*>(all.exp_avg_sq) + start);
  }
  constexpr auto block = BlockQuantisation::block;
  const auto &with_sign = BlockQuantisation::of(true), &without = BlockQuantisation::of(false);
  auto* codes_avg = static_cast<std::uint8_t*>(all.exp_avg) + start;
  auto* codes_sq = static_cast<std::uint8_t*>(all.exp_avg_sq) + start;
  auto* largest_avg = all.largest_avg + start / block;
  auto* largest_sq = all.largest_sq + start / block;
  for (std::int64_t done = 0; done < count; done += block) {  // by the block: it stays in the first cache
    const auto size = std::min(block, count - done);
    float mean[block], square[block];
    with_sign.unpack(codes_avg + done, largest_avg, size, mean);
    without.unpack(codes_sq + done, largest_sq, size, square);
    adam_update(rounding, all.numbers, size, parameter + done, gradient + done, mean, square);
    with_sign.pack(mean, size, codes_avg + done, largest_avg++);
    without.pack(square, size, codes_sq + done, largest_sq++);
  }
}

}  // namespace

void adam_on_host(AdamState kept_in, const std::vector<HostTensor>& tensors) {
  const auto rounding = rounding_here();
  for_each_chunk_of(
      tensors.size(), chunk, [&](std::size_t i) { return tensors[i].count; },
      [&](std::size_t i, std::int64_t start) { update_chunk(kept_in, rounding, tensors[i], start); });
}

Rounding rounding_here() {
#if defined(__x86_64__)
  static const bool has_avx2 = at::get_cpu_capability().starts_with("AVX");
  return has_avx2 ? Rounding::once : Rounding::twice;
#else
  return Rounding::twice;
#endif
}

}  // namespace vernier
