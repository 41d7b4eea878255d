// The samples that a model predicts worst.
#pragma once

#include <vernier/data/supervised_task.h>

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

namespace vernier {

class WorstSamples {
 public:
  explicit WorstSamples(std::size_t most) : most_(most) {}
  // Adds a batch whose outputs have a row for each sample. Others are passed over.
  void update(const SupervisedTask::Seen& seen);
  // An array of "where", "target", "predicted" and "loss", the worst first. names: of classes, if there are any.
  nlohmann::ordered_json json(const std::vector<std::string>& names) const;

 private:
  struct Sample {
    double loss;
    std::string where;
    torch::Tensor target, output;
  };
  std::size_t most_;
  std::vector<Sample> samples_;  // by loss, the largest first
};

// The JSON of WorstSamples as text.
std::string worst_text(const nlohmann::ordered_json& worst);

}  // namespace vernier
