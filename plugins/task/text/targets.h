// The kinds of targets of task/text, and how texts with them are held out.
#pragma once

#include <torch/types.h>
#include <vernier/data/evaluation.h>
#include <vernier/data/split.h>

#include <array>
#include <cstdint>
#include <string>

namespace text {

enum class Kind : std::uint8_t { classification, regression, ranking };

std::string name_of(Kind kind);         // "classification", as the option `kind` has it
Kind kind_of(const std::string& name);  // the kind with that name
vernier::Targets::Kind target_kind(Kind kind);

// Divides texts into those to train on and those held out. split: the option. groups: of each text, in a ranking, whose
// groups are never divided. share: of the texts; of a ranking that is split by "last" of the groups. Throws Error for a
// split that does not fit the kind.
vernier::SplitRows split_texts(Kind kind, const torch::Tensor& targets, const torch::Tensor& groups,
                               const std::string& split, double share, std::uint64_t seed);

}  // namespace text
