#include "adam_operators.h"

#include <ATen/ATen.h>

#include "block_quantisation.h"
#include "optim/kernels/counter_rng.h"

namespace vernier {

namespace {

// A dense tensor's memory.
torch::Tensor flat(const torch::Tensor& tensor) {
  return tensor.as_strided({tensor.numel()}, {1});
}

void keep(const torch::Tensor& kept, const torch::Tensor& now, const MaybeTensor& found_inf) {
  kept.copy_(found_inf ? at::where(*found_inf != 0, kept, now) : now);
}

void keep_in_bfloat16(const torch::Tensor& kept, const torch::Tensor& number, const torch::Tensor& noise) {
  const auto bits = number.view(torch::kInt).add(noise).bitwise_and_(-65536);
  kept.copy_(at::where(number.isnan(), number, bits.view(torch::kFloat)));  // keeps numbers that bfloat16 holds
}

}  // namespace

void adam_by_operators(AdamState kept_in, std::uint64_t seed, const UpdateLists& lists, const MaybeTensor& found_inf,
                       const AveragesKernel& kernel) {
  const auto &with_sign = BlockQuantisation::of(true), &without = BlockQuantisation::of(false);
  for (std::size_t i = 0; i < lists.parameters.size(); ++i) {
    const auto parameter = flat(lists.parameters[i]), gradient = flat(lists.gradients[i]);
    const auto exp_avg = flat(lists.slots[0][i]), exp_avg_sq = flat(lists.slots[1][i]);
    if (kept_in == AdamState::bfloat16) {
      const auto mean = exp_avg.to(torch::kFloat), square = exp_avg_sq.to(torch::kFloat);
      kernel(parameter, gradient, mean, square, lists.steps[i]);
      const auto noise = CountedNoise(seed, lists.numbers[i])(parameter.numel(), lists.steps[i]);
      keep_in_bfloat16(exp_avg, mean, noise.bitwise_and(65535));
      keep_in_bfloat16(exp_avg_sq, square, noise.bitwise_right_shift(16).bitwise_and_(65535));
      continue;
    }
    const auto &largest_avg = lists.slots[2][i], &largest_sq = lists.slots[3][i];
    const auto mean = with_sign.unpack({exp_avg, largest_avg}), square = without.unpack({exp_avg_sq, largest_sq});
    kernel(parameter, gradient, mean, square, lists.steps[i]);
    const auto packed_avg = with_sign.pack(mean), packed_sq = without.pack(square);
    keep(exp_avg, packed_avg.codes, found_inf);
    keep(largest_avg, packed_avg.largest, found_inf);
    keep(exp_avg_sq, packed_sq.codes, found_inf);
    keep(largest_sq, packed_sq.largest, found_inf);
  }
}

}  // namespace vernier
