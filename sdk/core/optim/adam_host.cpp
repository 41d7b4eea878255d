#include "adam_host.h"

#include <torch/types.h>

#include <algorithm>

#include "base/kernels.h"
#include "base/parallel.h"
#include "block_quantisation.h"

namespace vernier {

namespace {

constexpr std::int64_t chunk = 4096;  // elements: whole blocks, and whole vectors

void update_chunk(AdamState kept_in, const HostTensor& all, std::int64_t start) {
  const auto count = std::min(chunk, all.count - start);
  const auto& kernels = *best_kernels<AdamKernels>();
  auto* parameter = all.parameter + start;
  const auto* gradient = all.gradient + start;
  if (kept_in == AdamState::full) {
    return kernels.update(all.numbers, count, parameter, gradient, static_cast<float*>(all.exp_avg) + start,
                          static_cast<float*>(all.exp_avg_sq) + start);
  }
  if (kept_in == AdamState::bfloat16) {
    return kernels.update_bfloat16(all.numbers, all.noise, static_cast<std::uint32_t>(start), count, parameter,
                                   gradient, static_cast<std::uint16_t*>(all.exp_avg) + start,
                                   static_cast<std::uint16_t*>(all.exp_avg_sq) + start);
  }
  const auto first_block = start / BlockQuantisation::block;
  kernels.update_codes(all.numbers, {count, parameter, gradient, static_cast<std::uint8_t*>(all.exp_avg) + start,
                                     static_cast<std::uint8_t*>(all.exp_avg_sq) + start, all.largest_avg + first_block,
                                     all.largest_sq + first_block});
}

}  // namespace

void adam_on_host(AdamState kept_in, const std::vector<HostTensor>& tensors) {
  for_each_chunk_of(
      tensors.size(), chunk, [&](std::size_t i) { return tensors[i].count; },
      [&](std::size_t i, std::int64_t start) { update_chunk(kept_in, tensors[i], start); });
}

}  // namespace vernier
