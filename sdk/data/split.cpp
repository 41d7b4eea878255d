#include <c10/util/StringUtil.h>
#include <torch/types.h>
#include <vernier/data/split.h>
#include <vernier/error.h>
#include <vernier/sampler.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <vector>

namespace vernier {

namespace {

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

SplitRows split_random(std::int64_t samples, double share, std::uint64_t seed) {
  const auto second = part_of(samples, share);
  const auto order = shuffled(samples, seed);
  // In order, so that neighbours of a file stay neighbours.
  return {std::get<0>(order.narrow(0, second, samples - second).sort()),
          std::get<0>(order.narrow(0, 0, second).sort())};
}

// Each class gives the whole part of its share. Those with the largest remainders give one more, until the held-out
// samples are as many as split_random() holds out.
SplitRows split_classes(const torch::Tensor& classes, double share, std::uint64_t seed) {
  const auto all = shuffled_by(classes, seed);
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
  std::vector<std::int64_t> training, held_out;
  for (std::int64_t i = 0; i < order.numel(); ++i) {
    const auto& rows = *of_group[static_cast<std::size_t>(order.const_data_ptr<std::int64_t>()[i])];
    const bool is_held_out = std::ssize(held_out) < wanted && i + 1 < order.numel();
    auto& to = is_held_out ? held_out : training;
    to.insert(to.end(), rows.begin(), rows.end());
  }
  return {sorted(training), sorted(held_out)};
}

SplitRows split_last(std::int64_t samples, double share) {
  const auto second = part_of(samples, share);
  const auto all = torch::arange(samples, torch::kInt64);
  return {all.narrow(0, 0, samples - second), all.narrow(0, samples - second, second)};
}

}  // namespace vernier
