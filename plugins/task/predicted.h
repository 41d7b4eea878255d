// Columns and metrics of tasks that predict a class or a number of each sample.
#pragma once

#include <torch/types.h>
#include <vernier/data/data_source.h>
#include <vernier/data/evaluation.h>
#include <vernier/data/predictor.h>

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

// The columns of `vernier predict` for logits [samples, classes]: class, its probability, and on request those of all.
// target: the column's name in the data, or "".
inline std::vector<vernier::Predictor::Column> class_columns(const torch::Tensor& logits, const std::string& target,
                                                             const std::vector<std::string>& classes) {
  const auto chances = logits.to(torch::kFloat32).softmax(1);
  const auto [probability, code] = chances.max(1);
  const auto* of_class = target == "probability" ? "class_probability" : "probability";
  const auto* of_all = target == "probabilities" ? "class_probabilities" : "probabilities";
  return {{target.empty() ? "class" : target, code, classes},
          {of_class, probability},
          {of_all, chances, {}, classes, /*on_request=*/true}};
}

// The metrics of these names; without names the usual ones. Throws Error for one that does not fit.
inline std::vector<vernier::MetricPtr> metrics_of(std::vector<std::string> names, vernier::Predicts what,
                                                  std::int64_t classes) {
  using vernier::Predicts;
  if (names.empty()) {
    if (what == Predicts::classes) names = {"accuracy", "f1"};
    if (what == Predicts::numbers) names = {"mae", "rmse", "r2"};
    if (what == Predicts::ranks) names = {"ndcg_10", "mrr"};
    if (what == Predicts::classes && classes == 2) names.emplace_back("auc");
  }
  std::vector<vernier::MetricPtr> metrics;
  for (const auto& name : names) {
    vernier::require_fitting_metric(name, what, classes);
    metrics.push_back(vernier::metric_by_name(name, classes));
  }
  return metrics;
}
