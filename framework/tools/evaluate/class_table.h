// Classes or labels one by one: how well each is told apart, what it is taken for, and what its probabilities are
// worth.
#pragma once

#include <vernier/tensor.h>

#include <cstdint>
#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

namespace vernier {

std::string indented(const std::string& lines);  // each line by two blanks

class ClassTable {
 public:
  // Adds a batch of logits [samples, classes, …] and int64 targets [samples, …], those below 0 left out.
  void update(const torch::Tensor& output, const torch::Tensor& target);
  bool empty() const { return pairs_.empty(); }

  // Precision, recall, f1, support and area under the ROC of each class that occurs, and the confusion matrix; of many
  // classes the worst ones and the pairs that are confused most. Then the calibration. names: of the classes, if they
  // have any.
  std::string text(const std::vector<std::string>& names) const;
  // The same as JSON for a page: "without_class", "classes", "roc", "ece" and "reliability", and "confusion" if there
  // are few classes.
  nlohmann::ordered_json json(const std::vector<std::string>& names) const;

 private:
  std::vector<std::int64_t> classes() const;                 // classes that occur
  std::int64_t without_class() const;                        // outputs with a NaN, which predict none
  nlohmann::ordered_json roc_of(std::int64_t number) const;  // {"auc", "points"}: one class against the others
  nlohmann::ordered_json calibration() const;

  // Counts of (target, prediction). The prediction is -1 where the output has a NaN.
  std::map<std::pair<std::int64_t, std::int64_t>, std::int64_t> pairs_;
  std::vector<torch::Tensor> chances_, targets_;  // on the CPU: float32 [samples, classes], int64 [samples]
};

// Precision, recall, f1 and auc of each label, for samples that may have several labels.
class LabelTable {
 public:
  explicit LabelTable(std::int64_t labels) : labels_(labels) {}
  // Adds a batch of logits and targets, [samples] or [samples, labels, …]. Targets are 0 to 1; NaN is not counted.
  void update(const torch::Tensor& output, const torch::Tensor& target);
  bool empty() const { return !counts_.defined(); }
  // Returns a table of precision, recall, f1, auc and the number of positive targets of each label. A line below it
  // names the labels that have no auc.
  std::string text(const std::vector<std::string>& names) const;

 private:
  std::int64_t labels_;
  torch::Tensor counts_;  // [4, labels]: right predictions, predictions, positive, known targets
  std::vector<torch::Tensor> outputs_, targets_;  // [rows, labels]; none of labels by pixel
};

}  // namespace vernier
