// Ways to hold out a part of the samples. dataset.h's split() holds out at random.
//
//   const auto parts = vernier::split_classes(labels, 0.1, run.seed);
//   set_training(vernier::subset(dataset, parts.training));
//   add_validation(vernier::subset(dataset, parts.held_out));
#pragma once

#include <vernier/abi.h>
#include <vernier/tensor.h>

#include <cstdint>

namespace vernier {

// int64 numbers of samples, each in order. Together they are all samples, once.
struct SplitRows {
  torch::Tensor training, held_out;
};

// At random: `share` of the samples, rounded up. The same as split() of dataset.h.
VERNIER_API SplitRows split_random(std::int64_t samples, double share, std::uint64_t seed);
// The same share of each class (int64 [samples]) at random. A class of one sample is trained on.
VERNIER_API SplitRows split_classes(const torch::Tensor& classes, double share, std::uint64_t seed);
// Whole groups (int64 [samples]) at random, until they have the share; at least one group is trained on.
VERNIER_API SplitRows split_groups(const torch::Tensor& groups, double share, std::uint64_t seed);
// The last samples, for data that are in order of time. In folds each holds out the part that follows its training
// samples, and the first `first` samples are never held out.
VERNIER_API SplitRows split_last(std::int64_t samples, double share, std::int64_t first = 0);

}  // namespace vernier
