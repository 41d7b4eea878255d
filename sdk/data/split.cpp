#include <c10/util/StringUtil.h>
#include <torch/types.h>
#include <vernier/data/split.h>
#include <vernier/error.h>
#include <vernier/sampler.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <map>
#include <vector>

#include "folds.h"

namespace vernier {

namespace {

struct {
  Fold fold;
  bool is_used = false;
} thread_local now;

torch::Tensor sorted(std::vector<std::int64_t> rows) {
  std::ranges::sort(rows);
  return torch::tensor(rows, torch::kInt64);
}

std::int64_t part_of(std::int64_t samples, double share) {
  if (!(share >= 0 && share <= 1)) refuse(c10::str("a share of ", share, " cannot be split off; it must be 0 to 1"));
  return static_cast<std::int64_t>(std::ceil(static_cast<double>(samples) * share));
}

torch::Tensor shuffled(std::int64_t samples, std::uint64_t seed) {
  return samples == 0 ? torch::empty({0}, torch::kInt64) : Sampler(samples, seed).next(samples);
}

void require_enough(std::int64_t there, const Fold& fold, const char* what) {
  if (there >= fold.count) return;
  refuse(c10::str("fold ", fold.number, " of ", fold.count, " holds out nothing: there are ", there, " ", what,
                  "; take at most ", there, " folds"));
}

// Deals classes to the folds, one sample after the other, so that each fold has its share of each class.
SplitRows deal(const std::map<std::int64_t, std::vector<std::int64_t>>& classes, const Fold& fold) {
  std::vector<std::int64_t> training, held_out;
  std::int64_t place = 0;
  for (const auto& [code, rows] : classes) {
    for (const auto row : rows) {
      const bool is_held_out = rows.size() > 1 && place++ % fold.count == fold.number - 1;
      (is_held_out ? held_out : training).push_back(row);
    }
  }
  require_enough(place, fold, "samples of classes with more than one");
  return {sorted(training), sorted(held_out)};
}

// Deals whole groups, the largest first, each to the fold that has the fewest samples.
SplitRows deal_groups(std::vector<const std::vector<std::int64_t>*> groups, const Fold& fold) {
  require_enough(std::ssize(groups), fold, "groups");
  std::ranges::stable_sort(groups, std::ranges::greater(), [](const auto* rows) { return rows->size(); });
  std::vector<std::vector<std::int64_t>> folds(static_cast<std::size_t>(fold.count));
  for (const auto* rows : groups) {
    auto& least = *std::ranges::min_element(folds, {}, [](const auto& each) { return each.size(); });
    least.insert(least.end(), rows->begin(), rows->end());
  }
  std::vector<std::int64_t> training;
  const auto own = static_cast<std::size_t>(fold.number - 1);
  for (std::size_t i = 0; i < folds.size(); ++i) {
    if (i != own) training.insert(training.end(), folds[i].begin(), folds[i].end());
  }
  return {sorted(training), sorted(folds[own])};
}

// The samples of each class, in a random order.
std::map<std::int64_t, std::vector<std::int64_t>> shuffled_by(const torch::Tensor& classes, std::uint64_t seed) {
  const auto codes = classes.to(torch::kInt64).contiguous();
  const auto order = shuffled(codes.numel(), seed).contiguous();
  std::map<std::int64_t, std::vector<std::int64_t>> rows;
  for (std::int64_t i = 0; i < order.numel(); ++i) {
    const auto row = order.const_data_ptr<std::int64_t>()[i];
    rows[codes.const_data_ptr<std::int64_t>()[row]].push_back(row);
  }
  return rows;
}

}  // namespace

std::optional<Fold> Fold::parse(const std::string& text) {
  Fold fold;
  if (text.empty()) return fold;
  char after = 0;
  constexpr std::int64_t most = 1000;
  const bool is_read = std::sscanf(text.c_str(), "%ld/%ld%c", &fold.number, &fold.count, &after) == 2;
  const bool is_right = fold.number >= 1 && fold.number <= fold.count && fold.count >= 2 && fold.count <= most;
  return is_read && is_right ? std::optional(fold) : std::nullopt;
}

FoldScope::FoldScope(const Fold& fold) {
  now = {fold, false};
}

FoldScope::~FoldScope() {
  now = {};
}

void FoldScope::require_used(const std::string& task) const {
  if (now.fold.count == 0 || now.is_used) return;
  refuse(task + ": a fold needs data of which a share is held out; leave out the validation files", task);
}

Fold fold_in_use() {
  now.is_used = true;
  return now.fold;
}

// Holds out the samples at these places of a random order. Both parts are sorted, so that neighbours of a file stay
// neighbours, in the memory of the order.
SplitRows in_order(const torch::Tensor& order, std::int64_t begin, std::int64_t end) {
  const auto samples = order.numel();
  auto* sample = samples == 0 ? nullptr : order.mutable_data_ptr<std::int64_t>();
  std::vector<bool> is_held_out(static_cast<std::size_t>(samples));
  for (auto i = begin; i < end; ++i) is_held_out[static_cast<std::size_t>(sample[i])] = true;
  auto *training = sample, *held_out = sample + (samples - (end - begin));
  for (std::int64_t i = 0; i < samples; ++i) *(is_held_out[static_cast<std::size_t>(i)] ? held_out : training)++ = i;
  return {order.narrow(0, 0, samples - (end - begin)), order.narrow(0, samples - (end - begin), end - begin)};
}

SplitRows split_random(std::int64_t samples, double share, std::uint64_t seed) {
  const auto fold = fold_in_use();
  const auto order = shuffled(samples, seed);
  if (fold.count > 0) {
    require_enough(samples, fold, "samples");
    const auto begin = samples * (fold.number - 1) / fold.count, end = samples * fold.number / fold.count;
    return in_order(order, begin, end);
  }
  return in_order(order, 0, part_of(samples, share));
}

// Each class gives the whole part of its share. Those with the largest remainders give one more, until the held-out
// samples are as many as split_random() holds out.
SplitRows split_classes(const torch::Tensor& classes, double share, std::uint64_t seed) {
  const auto all = shuffled_by(classes, seed);
  if (const auto fold = fold_in_use(); fold.count > 0) return deal(all, fold);
  struct Part {
    const std::vector<std::int64_t>* rows;
    std::int64_t held_out;
    double rest;
  };
  std::vector<Part> parts;
  auto left = part_of(classes.numel(), share);
  for (const auto& [code, rows] : all) {
    const auto exact = static_cast<double>(rows.size()) * share;
    const auto whole = std::min(static_cast<std::int64_t>(exact), std::ssize(rows) - 1);
    parts.push_back({&rows, whole, exact - static_cast<double>(whole)});
    left -= whole;
  }
  std::ranges::stable_sort(parts, std::ranges::greater(), &Part::rest);
  std::vector<std::int64_t> training, held_out;
  for (auto& [rows, count, rest] : parts) {
    if (left > 0 && count + 1 < std::ssize(*rows)) ++count, --left;
    held_out.insert(held_out.end(), rows->begin(), rows->begin() + count);
    training.insert(training.end(), rows->begin() + count, rows->end());
  }
  return {sorted(training), sorted(held_out)};
}

SplitRows split_groups(const torch::Tensor& groups, double share, std::uint64_t seed) {
  const auto all = shuffled_by(groups, seed);
  std::vector<const std::vector<std::int64_t>*> of_group;
  for (const auto& [code, rows] : all) of_group.push_back(&rows);
  const auto wanted = part_of(groups.numel(), share);
  const auto order = shuffled(std::ssize(of_group), seed).contiguous();
  if (const auto fold = fold_in_use(); fold.count > 0) return deal_groups(of_group, fold);
  std::vector<std::int64_t> training, held_out;
  for (std::int64_t i = 0; i < order.numel(); ++i) {
    const auto& rows = *of_group[static_cast<std::size_t>(order.const_data_ptr<std::int64_t>()[i])];
    const bool is_held_out = std::ssize(held_out) < wanted && i + 1 < order.numel();
    auto& to = is_held_out ? held_out : training;
    to.insert(to.end(), rows.begin(), rows.end());
  }
  return {sorted(training), sorted(held_out)};
}

SplitRows split_last(std::int64_t samples, double share, std::int64_t first) {
  const auto all = torch::arange(samples, torch::kInt64);
  if (const auto fold = fold_in_use(); fold.count > 0) {  // the parts before a fold train; it is one of `count` + 1
    const auto rest = samples - first;
    require_enough(rest - 1, fold, "samples after the first");
    const auto begin = first + rest * fold.number / (fold.count + 1);
    const auto end = first + rest * (fold.number + 1) / (fold.count + 1);
    return {all.narrow(0, 0, begin), all.narrow(0, begin, end - begin)};
  }
  const auto second = part_of(samples, share);
  return {all.narrow(0, 0, samples - second), all.narrow(0, samples - second, second)};
}

}  // namespace vernier
