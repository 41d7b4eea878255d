#include "preferences.h"

#include <ATen/ops/cat.h>
#include <ATen/ops/log_sigmoid.h>
#include <ATen/ops/relu.h>
#include <ATen/ops/stack.h>
#include <c10/util/ScopeExit.h>
#include <vernier/error.h>

#include <array>
#include <limits>
#include <memory>
#include <utility>

namespace language {

namespace {

using vernier::between;

const std::vector<vernier::MetricInfo>& infos() {
  using vernier::Better;
  static const std::vector<vernier::MetricInfo> all = {
      {"rewards_chosen", Better::higher, "", "mean reward of the chosen answers"},
      {"rewards_rejected", Better::lower, "", "mean reward of the rejected answers"},
      {"rewards_margins", Better::higher, "", "mean of the chosen answer's reward less that of the rejected one"},
      {"rewards_accuracies", Better::higher, "ratio", "share of the pairs whose chosen answer has the higher reward", 0,
       1}};
  return all;
}

// The sums of the four numbers over the pairs, and their count: [5].
torch::Tensor sums_of(const torch::Tensor& rewards) {
  const auto chosen = rewards.select(1, 0), rejected = rewards.select(1, 1);
  const auto numbers =
      at::stack({chosen, rejected, chosen - rejected, (chosen > rejected).to(rewards.scalar_type())}, 1);
  return at::cat({numbers.sum(0, false, torch::kFloat64),
                  torch::full({1}, rewards.size(0), numbers.options().dtype(torch::kFloat64))});
}

class RewardMetric final : public vernier::Metric {
 public:
  RewardMetric(std::size_t which, double beta) : which_(which), beta_(beta) {}
  std::string name() const override { return info().name; }
  vernier::MetricInfo info() const override { return infos()[which_]; }
  void reset() override { sums_ = torch::Tensor(); }
  void update(const torch::Tensor& ratios, const torch::Tensor&) override {
    const auto sums = sums_of(ratios * beta_);
    sums_ = sums_.defined() ? sums_ + sums : sums;
  }
  torch::Tensor value() const override {
    if (!sums_.defined()) return torch::full({}, std::numeric_limits<double>::quiet_NaN());
    return sums_[static_cast<std::int64_t>(which_)] / sums_[4];
  }
  std::optional<vernier::State> state_dict() const override {
    return sums_.defined() ? vernier::State{{"sums", sums_}} : vernier::State{};
  }
  void add(const vernier::State& state) override {
    if (!state.has("sums")) return;
    const auto sums = state.tensor("sums");
    sums_ = sums_.defined() ? sums_ + sums.to(sums_.device()) : sums;
  }

 private:
  std::size_t which_;
  double beta_;
  torch::Tensor sums_;
};

Objective objective_of(const std::string& name) {
  return name == "dpo"     ? Objective::dpo
         : name == "ipo"   ? Objective::ipo
         : name == "hinge" ? Objective::hinge
                           : Objective::likelihood;
}

}  // namespace

Preferences::Preferences(vernier::Options& options)
    : objective_(objective_of(
          options.choose("objective", "likelihood", {"likelihood", "dpo", "ipo", "hinge"},
                         "what is learned: the likelihood of texts, or of pairs of answers which one is preferred"))),
      beta_(options.get("beta", 0.1, "of preferences: how much the model is held to the one that training began with",
                        between(1e-9, 1e9))),
      label_smoothing_(options.get("label_smoothing", 0.0,
                                   "share of the loss that goes to all tokens alike; of dpo, of pairs taken for the "
                                   "wrong way round",
                                   between(0, 0.99))) {
  if (!are_learned() && options.given("beta"))
    options.refuse("beta", "is for objective = \"dpo\", \"ipo\" and \"hinge\"");
  if (objective_ == Objective::dpo && label_smoothing_ >= 0.5) {
    options.refuse("label_smoothing", "must be below 0.5 with objective = \"dpo\"");
  }
  const bool is_smooth = objective_ == Objective::likelihood || objective_ == Objective::dpo;
  if (!is_smooth && label_smoothing_ > 0) {
    options.refuse("label_smoothing", "is for objective = \"likelihood\" and \"dpo\"");
  }
}

void Preferences::compute(const std::string& set, const vernier::DatasetPtr& dataset, Network& network,
                          torch::Device device) {
  constexpr std::int64_t batch_size = 8;
  const torch::NoGradGuard no_grad;
  const auto restore = c10::make_scope_exit([&network, mode = network.is_training()] { network.train(mode); });
  network.eval();
  vernier::DataLoader loader(dataset, {.batch_size = batch_size, .order = vernier::Sampler::Order::sequential});
  std::vector<torch::Tensor> each, lengths;
  for (auto left = loader.batches_per_epoch(); left > 0; --left) {
    const auto batch = loader.next();
    const auto columns = torch::arange(1, batch.tensors[1].size(2) + 1);
    lengths.push_back(((batch.tensors[1] >= 0) * columns).amax({1, 2}));
    const auto time = lengths.back().max().item<std::int64_t>();
    const auto cut = [&](std::size_t i) { return batch.tensors[i].narrow(2, 0, time).flatten(0, 1).to(device); };
    each.push_back(network.loss_of_sums({cut(0)}, cut(1), [](const auto& sums) { return -sums.view({-1, 2}); }));
  }
  references_[set] = {at::cat(each).to(torch::kFloat32).cpu(), at::cat(lengths), dataset->fingerprint()};
}

bool Preferences::has(const std::string& set, const vernier::DatasetPtr& dataset) const {
  const auto found = references_.find(set);
  return found != references_.end() && found->second.fingerprint == dataset->fingerprint();
}

vernier::State Preferences::state() const {
  vernier::State state;
  for (const auto& [set, reference] : references_) {
    state.put(set + "/log_probabilities", reference.log_probabilities);
    state.put(set + "/lengths", reference.lengths);
    state.put(set + "/fingerprint", reference.fingerprint);
  }
  return state;
}

void Preferences::set_state(const vernier::State& state) {
  for (const auto* set : {"training", "held_out"}) {
    const auto part = state.part(set);
    if (!part.has("lengths")) continue;
    references_[set] = {part.tensor("log_probabilities").cpu().clone(), part.tensor("lengths").cpu().clone(),
                        part.text("fingerprint")};
  }
}

// The columns behind the longest answer of the batch are left out. The host knows the lengths.
Preferences::Pairs Preferences::pairs_of(const std::string& set, const vernier::Batch& batch) const {
  const auto& reference = references_.at(set);
  const auto indices = torch::tensor(batch.indices, torch::kInt64);
  const auto time = reference.lengths.index_select(0, indices).max().item<std::int64_t>();
  const auto cut = [&](std::size_t i) { return batch.tensors.at(i).narrow(2, 0, time).flatten(0, 1); };
  return {{cut(0)},
          cut(1),
          reference.log_probabilities.index_select(0, indices).to(batch.tensors[0].device(), /*non_blocking=*/true)};
}

torch::Tensor Preferences::loss(const std::string& set, Network& network, const vernier::Batch& batch) {
  const auto pairs = pairs_of(set, batch);
  return network.loss_of_sums(pairs.texts, pairs.targets, [&](const torch::Tensor& sums) {
    const auto ratios = -sums.view({-1, 2}) - pairs.reference;
    const auto rewards = sums_of(ratios.detach() * beta_);
    rewards_ = rewards_.defined() ? rewards_ + rewards : rewards;
    return loss_of(ratios, batch.tensors[1]);
  });
}

torch::Tensor Preferences::ratios(const std::string& set, Network& network, const vernier::Batch& batch) const {
  const torch::NoGradGuard no_grad;
  const auto pairs = pairs_of(set, batch);
  return network.loss_of_sums(pairs.texts, pairs.targets, [&](const auto& sums) {
    return -sums.view({-1, 2}) - pairs.reference;
  });
}

// Rafailov et al. 2023, arXiv:2305.18290, with the labels of Mitchell 2023 (cDPO); Azar et al. 2023, arXiv:2310.12036,
// by tokens as in TRL; Zhao et al. 2023, arXiv:2305.10425 (SLiC), with the reference as in Liu et al. 2023.
torch::Tensor Preferences::loss_of(const torch::Tensor& ratios, const torch::Tensor& targets) const {
  const auto margin = [](const torch::Tensor& x) { return x.select(1, 0) - x.select(1, 1); };
  if (objective_ == Objective::ipo) return (margin(ratios / (targets >= 0).sum(2)) - 1 / (2 * beta_)).square().mean();
  const auto rewards = margin(ratios) * beta_;
  if (objective_ == Objective::hinge) return at::relu(1 - rewards).mean();
  const auto right = at::log_sigmoid(rewards);
  if (label_smoothing_ == 0) return -right.mean();
  return -((1 - label_smoothing_) * right + label_smoothing_ * at::log_sigmoid(-rewards)).mean();
}

std::vector<vernier::MetricInfo> Preferences::metric_infos() const {
  return are_learned() ? infos() : std::vector<vernier::MetricInfo>();
}

std::vector<vernier::MetricPtr> Preferences::metrics() const {
  std::vector<vernier::MetricPtr> all;
  for (std::size_t i = 0; i < infos().size(); ++i) all.push_back(std::make_unique<RewardMetric>(i, beta_));
  return all;
}

void Preferences::report_rewards(vernier::Run& run) const {
  if (!rewards_.defined()) return;
  for (std::size_t i = 0; i < infos().size(); ++i) {
    run.metrics.set(infos()[i].name.c_str(), rewards_[static_cast<std::int64_t>(i)] / rewards_[4]);
  }
}

}  // namespace language
