#include "adam_host.h"

#include <ATen/Version.h>
#include <torch/types.h>

#include <algorithm>

#include "base/parallel.h"
#include "block_quantisation.h"
#include "optim/kernels/adam_codes.h"

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
  const auto first_block = start / BlockQuantisation::block;
  adam_update_codes(rounding, all.numbers,
                    {count, parameter, gradient, static_cast<std::uint8_t*>(all.exp_avg) + start,
                     static_cast<std::uint8_t*>(all.exp_avg_sq) + start, all.largest_avg + first_block,
                     all.largest_sq + first_block});
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
