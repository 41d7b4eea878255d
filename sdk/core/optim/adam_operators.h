// Adam with averages in fewer bits than float32, by LibTorch's operators on any device. For one parameter at a time,
// the averages are converted to float32, updated by LibTorch's kernel, and packed again. No host sync. adam_host.h
// gives the same results on a CPU.
#pragma once

#include <functional>

#include "optim_rule.h"

namespace vernier {

// Calls LibTorch's kernel. All tensors are 1-D, the averages are float32; step is the step count.
using AveragesKernel =
    std::function<void(const torch::Tensor& parameter, const torch::Tensor& gradient, const torch::Tensor& exp_avg,
                       const torch::Tensor& exp_avg_sq, const torch::Tensor& step)>;
// If found_inf is not 0, the packed averages stay as they are. `kernel` must check found_inf itself.
void adam_by_operators(AdamState kept_in, std::uint64_t seed, const UpdateLists& lists, const MaybeTensor& found_inf,
                       const AveragesKernel& kernel);

}  // namespace vernier
