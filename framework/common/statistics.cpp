#include "statistics.h"

#include <algorithm>
#include <boost/math/distributions/students_t.hpp>
#include <cmath>
#include <numeric>

namespace vernier {

namespace {

double mean_of(const std::vector<double>& values) {
  return std::accumulate(values.begin(), values.end(), 0.0) / static_cast<double>(values.size());
}

// The variance of two values or more.
double variance_of(const std::vector<double>& values) {
  const double mean = mean_of(values);
  double squares = 0;
  for (const double value : values) squares += (value - mean) * (value - mean);
  return squares / static_cast<double>(values.size() - 1);
}

// Returns the quantile of Student's t, both sides together.
double quantile_of(double freedom, double with_confidence = confidence) {
  return boost::math::quantile(boost::math::students_t(freedom), (1 + with_confidence) / 2);
}

}  // namespace

MedianRange median_range_of(std::vector<double> values) {
  std::ranges::sort(values);
  const auto middle = values.size() / 2;
  const double median = values.size() % 2 == 1 ? values[middle] : (values[middle - 1] + values[middle]) / 2;
  return {median, values.front(), values.back()};
}

Judgement judge(const std::vector<double>& baseline, const std::vector<double>& candidate, const Rule& rule) {
  std::vector<double> differences;
  for (std::size_t i = 0; i < baseline.size(); ++i) differences.push_back(candidate[i] - baseline[i]);
  if (!differences.empty() && std::ranges::all_of(differences, [](double each) { return each == 0; })) {
    return {Verdict::equal, std::nullopt};
  }
  if (differences.size() < least_seeds) return {Verdict::too_few_seeds, std::nullopt};
  const auto count = static_cast<double>(differences.size());
  double variance = variance_of(differences);
  // The noise of two timed runs is not the same because their seeds are: pairs that agree by chance show nothing.
  if (rule.is_timed) variance = std::max(variance, variance_of(baseline) + variance_of(candidate));
  const double of_each = 1 - (1 - confidence) / static_cast<double>(std::max<std::size_t>(rule.claims, 1));
  const double half = quantile_of(count - 1, of_each) * std::sqrt(variance * (1 / count + rule.overlap));
  const double mean = mean_of(differences), median = median_range_of(differences).median;
  const std::pair interval{mean - half, mean + half};
  const bool is_large = std::abs(median) >= rule.least;
  if (is_large && interval.first > 0) return {Verdict::higher, interval};
  if (is_large && interval.second < 0) return {Verdict::lower, interval};
  return {Verdict::not_shown, interval};
}

Spread spread_of(const std::vector<double>& values, double overlap, double with_confidence) {
  const auto count = static_cast<double>(values.size());
  const double mean = mean_of(values), variance = variance_of(values);
  const double half = quantile_of(count - 1, with_confidence) * std::sqrt(variance * (1 / count + overlap));
  return {mean, std::sqrt(variance), mean - half, mean + half};
}

double distance_of_equals(const std::vector<double>& samples) {
  return quantile_of(static_cast<double>(samples.size()) - 1) * std::sqrt(2 * variance_of(samples));
}

}  // namespace vernier
