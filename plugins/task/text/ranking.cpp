#include "ranking.h"

#include <ATen/ops/full.h>
#include <ATen/ops/softplus.h>

#include <limits>

namespace text {

torch::Tensor pair_loss(const torch::Tensor& scores, const torch::Tensor& targets) {
  const auto is_better = targets.unsqueeze(2) > targets.unsqueeze(1);  // never true of NaN
  const auto losses = at::softplus(scores.unsqueeze(1) - scores.unsqueeze(2)) * is_better;
  return (losses.sum({1, 2}) / is_better.sum({1, 2}).clamp_min(1)).mean();
}

std::int64_t groups_without_order(const torch::Tensor& targets, const torch::Tensor& groups) {
  constexpr double most = std::numeric_limits<double>::infinity();
  const auto count = groups.max().item<std::int64_t>() + 1;
  const auto least = at::full({count}, most, torch::kFloat64).scatter_reduce(0, groups, targets, "amin");
  const auto largest = at::full({count}, -most, torch::kFloat64).scatter_reduce(0, groups, targets, "amax");
  return least.eq(largest).sum().item<std::int64_t>();
}

}  // namespace text
