// Learning from pairs of answers, of which people preferred one: DPO and its kin.
#pragma once

#include <vernier/data/data_loader.h>
#include <vernier/data/evaluation.h>
#include <vernier/options.h>
#include <vernier/run.h>

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "network.h"

namespace language {

// Objective of the training: the likelihood of texts, or which of two answers is preferred. The reward of an answer is
// beta times its log-probability over that of the reference.
enum class Objective { likelihood, dpo, ipo, hinge };

// The samples are those of read_preference_data() (vernier/text/language_data.h). The reference is the model before the
// first step. Its log-probabilities are computed once, by compute(), and are a part of the run's state.
class Preferences {
 public:
  // Reads objective, beta and label_smoothing, which task.h lists.
  explicit Preferences(vernier::Options& options);

  bool are_learned() const { return objective_ != Objective::likelihood; }
  double label_smoothing() const { return label_smoothing_; }

  // Computes those of the samples of a set, without dropout. All ranks compute all of them, in the same batches, so
  // that they have the same bits.
  void compute(const std::string& set, const vernier::DatasetPtr& dataset, Network& network, torch::Device device);
  bool has(const std::string& set, const vernier::DatasetPtr& dataset) const;
  vernier::State state() const;
  void set_state(const vernier::State& state);

  // The loss of a batch of the set.
  torch::Tensor loss(const std::string& set, Network& network, const vernier::Batch& batch);
  // The log-probabilities over those of the reference, [pairs, 2]: chosen and rejected. Without gradients.
  torch::Tensor ratios(const std::string& set, Network& network, const vernier::Batch& batch) const;
  // The mean loss of such numbers. targets: those of the pairs, [pairs, 2, time].
  torch::Tensor loss_of(const torch::Tensor& ratios, const torch::Tensor& targets) const;
  // rewards_chosen, rewards_rejected, rewards_margins and rewards_accuracies, of validations.
  std::vector<vernier::MetricPtr> metrics() const;
  std::vector<vernier::MetricInfo> metric_infos() const;  // theirs; none where no preferences are learned

  // The same of what loss() has seen since forget_rewards(), as metrics of a step.
  void report_rewards(vernier::Run& run) const;
  void forget_rewards() { rewards_ = torch::Tensor(); }

 private:
  struct Reference {
    torch::Tensor log_probabilities;  // float32 [samples, 2]
    torch::Tensor lengths;            // int64 [samples]: inputs of the longer answer
    std::string fingerprint;          // identifies the data set
  };
  struct Pairs {
    Texts texts;                       // [2 * pairs, time]
    torch::Tensor targets, reference;  // reference: [pairs, 2]
  };
  Pairs pairs_of(const std::string& set, const vernier::Batch& batch) const;

  Objective objective_;
  double beta_, label_smoothing_;
  std::map<std::string, Reference> references_;
  torch::Tensor rewards_;  // sums of the four numbers, and the count
};

}  // namespace language
