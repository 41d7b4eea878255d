// Ranking: texts of a group are ordered by a number of each, larger first.
#pragma once

#include <torch/types.h>

#include <cstdint>

namespace text {

// The mean over the groups of the mean logistic loss of all pairs of texts of which one has the larger target: RankNet
// (Burges et al. 2005, "Learning to Rank using Gradient Descent"). scores and targets: [groups, texts]; a target that
// is NaN has none. A group without such a pair counts 0.
torch::Tensor pair_loss(const torch::Tensor& scores, const torch::Tensor& targets);

// The number of groups whose texts all have the same target, so that nothing is learned of them.
std::int64_t groups_without_order(const torch::Tensor& targets, const torch::Tensor& groups);

}  // namespace text
