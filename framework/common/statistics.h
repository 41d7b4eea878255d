// The significance of a difference between few seeds. docs/guides/compare.md states the rule and its sources.
#pragma once

#include <optional>
#include <utility>
#include <vector>

namespace vernier {

constexpr double confidence = 0.995;
constexpr std::size_t least_seeds = 3;

struct MedianRange {
  double median, low, high;
};
MedianRange median_range_of(std::vector<double> values);  // values: at least one

enum class Verdict { equal, higher, lower, not_shown, too_few_seeds };

struct Rule {
  bool is_timed;           // differs between runs of one seed too, as speed and memory do
  double least;            // a smaller difference is never claimed
  std::size_t claims = 1;  // candidates that are judged against the baseline: the error of all is that of one
  double overlap = 0;      // held-out samples over training samples of a fold, since folds share the latter; 0: seeds
};

struct Judgement {
  Verdict verdict;
  std::optional<std::pair<double, double>> interval;  // the interval of the mean difference; empty below least_seeds
};

// Says whether the candidate differs from the baseline. Both have one value for each seed, in the same order. Ratios
// are judged by the logarithms of the values.
Judgement judge(const std::vector<double>& baseline, const std::vector<double>& candidate, const Rule& rule);

// The mean of at least two values, their standard deviation, and the t interval of the mean. overlap: as in Rule.
struct Spread {
  double mean, deviation, low, high;
};
Spread spread_of(const std::vector<double>& values, double overlap, double with_confidence);

// Returns how far apart two values are at most, with `confidence`, of the population of these two samples or more.
double distance_of_equals(const std::vector<double>& samples);

}  // namespace vernier
