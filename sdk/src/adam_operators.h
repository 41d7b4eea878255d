// Averages in fewer bits than float32 with LibTorch's operators, on any device: widened for one parameter at a time,
// updated by LibTorch's kernel, packed again. No host sync. The host's own pass (adam_host.h) gives the same.
#pragma once

#include <functional>

#include "optim_rule.h"

namespace vernier {

// 1-D: parameter, gradient, the averages in float32, and the step count.
using AveragesKernel = std::function<void(const torch::Tensor& parameter, const torch::Tensor& gradient,
                                          const torch::Tensor& exp_avg, const torch::Tensor& exp_avg_sq,
                                          const torch::Tensor& step)>;
// found_inf, where given, keeps the packed averages as they are; the kernel looks at it for itself.
void adam_by_operators(AdamState kept_in, std::uint64_t seed, const UpdateLists& lists, const MaybeTensor& found_inf,
                       const AveragesKernel& kernel);

}  // namespace vernier
