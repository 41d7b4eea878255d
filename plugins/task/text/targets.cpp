#include "targets.h"

#include <ATen/ops/isin.h>
#include <vernier/error.h>

#include <algorithm>

namespace text {

namespace {

constexpr std::array names = {"classification", "regression", "ranking"};

// Holds out the last groups.
vernier::SplitRows split_last_groups(const torch::Tensor& groups, double share) {
  const auto parts = vernier::split_last(groups.max().item<std::int64_t>() + 1, share);
  const auto rows = [&](const torch::Tensor& some) { return at::isin(groups, some).nonzero().flatten(); };
  return {rows(parts.training), rows(parts.held_out)};
}

}  // namespace

std::string name_of(Kind kind) {
  return names.at(static_cast<std::size_t>(kind));
}

Kind kind_of(const std::string& name) {
  return static_cast<Kind>(std::ranges::find(names, name) - names.begin());
}

vernier::Targets::Kind target_kind(Kind kind) {
  return kind == Kind::classification ? vernier::Targets::Kind::classes
         : kind == Kind::ranking      ? vernier::Targets::Kind::ranks
                                      : vernier::Targets::Kind::numbers;
}

vernier::SplitRows split_texts(Kind kind, const torch::Tensor& targets, const torch::Tensor& groups,
                               const std::string& split, double share, std::uint64_t seed) {
  if (split == "stratified" && kind != Kind::classification) {
    vernier::refuse("split = \"stratified\" is for classes, and the target is a number");
  }
  if (kind == Kind::ranking) {
    return split == "last" ? split_last_groups(groups, share) : vernier::split_groups(groups, share, seed);
  }
  if (split == "last") return vernier::split_last(targets.size(0), share);
  return kind == Kind::classification && split != "random" ? vernier::split_classes(targets, share, seed)
                                                           : vernier::split_random(targets.size(0), share, seed);
}

}  // namespace text
