// Classes one by one: how well each is told apart, and what it is taken for.
#pragma once

#include <vernier/tensor.h>

#include <cstdint>
#include <map>
#include <string>
#include <utility>
#include <vector>

namespace vernier {

class ClassTable {
 public:
  // Adds a batch: logits [samples, classes] and int64 targets [samples], those below 0 left out. Others are passed
  // over.
  void update(const torch::Tensor& output, const torch::Tensor& target);
  bool empty() const { return pairs_.empty(); }

  // Precision, recall, f1 and support of each class that occurs, and the confusion matrix; of many classes the worst
  // ones and the pairs that are confused most. names: of the classes, if they have any.
  std::string text(const std::vector<std::string>& names) const;

 private:
  std::map<std::pair<std::int64_t, std::int64_t>, std::int64_t> pairs_;  // target and prediction: how often
};

}  // namespace vernier
