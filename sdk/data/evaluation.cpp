#include <ATen/ATen.h>
#include <c10/util/StringUtil.h>
#include <torch/types.h>
#include <vernier/data/evaluation.h>
#include <vernier/error.h>
#include <vernier/options.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <vector>

namespace vernier {

namespace {

torch::Tensor zero_like_sum(const torch::Tensor& output) {
  return at::zeros({}, output.options().dtype(torch::kFloat64));
}

// Logits as [n, classes] and targets as [n], without those that are left out.
struct Classified {
  torch::Tensor logits, target;
};
Classified classified(const torch::Tensor& output, const torch::Tensor& target) {
  if (output.dim() < 2 || target.dim() != output.dim() - 1) {
    refuse(c10::str("a metric of classes needs logits [samples, classes, …] and targets without the classes, and has ",
                    output.sizes(), " and ", target.sizes(), "; say in set_loss() where a sample has several labels"));
  }
  return {output.movedim(1, -1).reshape({-1, output.size(1)}), target.reshape({-1})};
}

// One row for each sample, or position of one, and one column for each label, of a tensor with as many elements as
// `like`, whose dimension 1 has the labels.
torch::Tensor by_label(const torch::Tensor& tensor, const torch::Tensor& like, std::int64_t labels) {
  const auto has_labels = labels == 1 || (like.dim() > 1 && like.size(1) == labels);
  if (tensor.numel() != like.numel() || !has_labels) {
    refuse(c10::str("a metric of ", labels, labels == 1 ? " label" : " labels",
                    " needs as many logits as targets, and has ", tensor.sizes(), " and ", like.sizes()));
  }
  if (labels == 1) return tensor.reshape({-1, 1});
  return tensor.reshape(like.sizes()).movedim(1, -1).reshape({-1, labels});
}

// An entry that another metric may have, and that adds up.
void add_to(torch::Tensor& sum, const State& state, const char* name) {
  if (!state.has(name)) return;
  const auto more = state.tensor(name);
  sum = sum.defined() ? sum + more.to(sum.device()) : more;
}

// A number that is a mean: the sum of something over all targets that count, and their number.
class Mean : public Metric {
 public:
  explicit Mean(std::string name) : name_(std::move(name)) {}
  std::string name() const override { return name_; }
  void reset() override { sum_ = count_ = torch::Tensor(); }
  torch::Tensor value() const override { return sum_.defined() ? sum_ / count_ : at::full({}, NAN, torch::kFloat64); }
  std::optional<State> state_dict() const override {
    return sum_.defined() ? State{{"sum", sum_}, {"count", count_}} : State{};
  }
  void add(const State& state) override {
    add_to(sum_, state, "sum");
    add_to(count_, state, "count");
  }

 protected:
  // values and weights: one for each target; weight 0 leaves it out.
  void count(const torch::Tensor& values, const torch::Tensor& weights) {
    if (!sum_.defined()) sum_ = zero_like_sum(values), count_ = zero_like_sum(values);
    sum_ += at::where(weights != 0, values, at::zeros({}, values.options())).sum(torch::kFloat64);
    count_ += weights.sum(torch::kFloat64);
  }

 private:
  std::string name_;
  torch::Tensor sum_, count_;
};

// The class with the largest logit; -1 where a logit is NaN, because then none is the largest.
torch::Tensor predicted(const torch::Tensor& logits) {
  const auto [largest, place] = logits.max(1);
  return at::where(largest.isnan(), at::full({}, -1, place.options()), place);
}

class TopK final : public Mean {
 public:
  TopK(std::string name, std::int64_t k) : Mean(std::move(name)), k_(k) {}
  void update(const torch::Tensor& output, const torch::Tensor& target) override {
    const auto [logits, right] = classified(output, target);
    if (k_ == 1) return count((predicted(logits) == right).to(torch::kFloat64), right >= 0);
    const auto [largest, places] = logits.topk(std::min(k_, logits.size(1)), 1);
    const auto is_hit = (places == right.unsqueeze(1)).any(1) & ~largest.isnan().any(1);
    count(is_hit.to(torch::kFloat64), right >= 0);
  }

 private:
  std::int64_t k_;
};

class CrossEntropy final : public Mean {
 public:
  CrossEntropy() : Mean("perplexity") {}
  void update(const torch::Tensor& output, const torch::Tensor& target) override {
    const auto [logits, right] = classified(output, target);
    const auto losses =
        -logits.to(torch::kFloat64).log_softmax(1).gather(1, right.clamp_min(0).unsqueeze(1)).squeeze(1);
    count(losses, right >= 0);
  }
  torch::Tensor value() const override { return Mean::value().exp(); }
};

// Returns the Dice coefficient (f1), or for "iou" the Jaccard index. hits: right predictions; both: predictions plus
// targets.
torch::Tensor overlap_of(const std::string& name, const torch::Tensor& hits, const torch::Tensor& both) {
  const auto part = name == "iou" ? hits : 2 * hits, all = name == "iou" ? both - hits : both;
  return part.to(torch::kFloat64) / all.clamp_min(1);
}

// Macro f1 or iou, as scikit-learn computes it: the mean over the classes that occur, as a target or as a prediction.
class Overlap final : public Metric {
 public:
  Overlap(std::string name, std::int64_t classes) : name_(std::move(name)), classes_(classes) {
    if (classes < 2) refuse(c10::str(name_, " needs at least 2 classes, not ", classes, ": leave it out"));
  }
  std::string name() const override { return name_; }
  void reset() override { counts_ = torch::Tensor(); }
  void update(const torch::Tensor& output, const torch::Tensor& target) override {
    const auto [logits, right] = classified(output, target);
    const auto said = predicted(logits);
    // The place behind the classes counts what is of none: targets that are left out, and outputs of no class.
    const auto counted = right >= 0;
    const auto place = [&](const torch::Tensor& where, const torch::Tensor& classes) {
      return at::where(where, classes, at::full({}, classes_, classes.options()));
    };
    const auto places = at::stack({place(counted & (said == right), right),
                                   place(counted & (said >= 0) & (said < classes_), said), place(counted, right)});
    if (!counts_.defined()) counts_ = at::zeros({3, classes_ + 1}, places.options());
    counts_.scatter_add_(1, places, at::ones_like(places));
  }
  torch::Tensor value() const override {
    if (!counts_.defined()) return at::full({}, NAN, torch::kFloat64);
    const auto counts = counts_.narrow(1, 0, classes_);
    const auto both = counts[1] + counts[2];
    return overlap_of(name_, counts[0], both).sum() / (both > 0).sum();
  }
  std::optional<State> state_dict() const override { return counts_.defined() ? State{{"counts", counts_}} : State{}; }
  void add(const State& state) override { add_to(counts_, state, "counts"); }

 private:
  std::string name_;
  std::int64_t classes_;
  torch::Tensor counts_;  // [3, classes + 1]: of each class right predictions, predictions, targets
};

// The mean over the labels of a score of each, as scikit-learn's average="macro". Of two classes the label is the
// second.
class Auc final : public Metric {
 public:
  // labels: 0 for two classes
  explicit Auc(std::int64_t labels) : of_classes_(labels == 0), labels_(std::max<std::int64_t>(labels, 1)) {}
  std::string name() const override { return "auc"; }
  void reset() override { scores_.clear(), targets_.clear(); }
  void update(const torch::Tensor& output, const torch::Tensor& target) override {
    auto scores = output.to(torch::kFloat64);
    if (of_classes_ && (output.numel() != target.numel() || target.numel() != target.size(0))) {
      const auto [logits, right] = classified(scores, target);
      if (logits.size(1) != 2)
        refuse(c10::str("auc is for two classes, and the outputs have the shape ", output.sizes()));
      scores = logits.select(1, 1) - logits.select(1, 0);
    }
    scores_.push_back(by_label(scores, target, labels_));
    targets_.push_back(by_label(target.to(torch::kFloat64), target, labels_));
  }
  torch::Tensor value() const override {
    if (scores_.empty()) return at::full({}, NAN, torch::kFloat64);
    const auto scores = at::cat(scores_), targets = at::cat(targets_);
    if ((~targets.isnan() & (targets != 0) & (targets != 1)).any().item<bool>())
      refuse("auc is for two classes, and targets are not 0 or 1 alone");
    std::vector<torch::Tensor> each;
    for (std::int64_t i = 0; i < labels_; ++i) {
      const auto known = (~targets.select(1, i).isnan()).nonzero().squeeze(1);
      each.push_back(of_label(scores.select(1, i).index_select(0, known), targets.select(1, i).index_select(0, known)));
    }
    return at::stack(each).mean();
  }
  std::optional<State> state_dict() const override {
    return scores_.empty() ? State{} : State{{"scores", at::cat(scores_)}, {"targets", at::cat(targets_)}};
  }
  void add(const State& state) override {
    if (!state.has("scores")) return;
    const auto device = scores_.empty() ? state.tensor("scores").device() : scores_.front().device();
    scores_.push_back(state.tensor("scores").to(device));
    targets_.push_back(state.tensor("targets").to(device));
  }

 private:
  static torch::Tensor of_label(const torch::Tensor& all_scores, const torch::Tensor& all) {
    if (all_scores.isnan().any().item<bool>()) return at::full({}, NAN, all.options());
    const auto [scores, order] = all_scores.sort();
    const auto targets = all.index_select(0, order);
    // Each score's rank, that of equal scores their mean.
    const auto [unique, which, counts] =
        at::unique_consecutive(scores, /*return_inverse=*/true, /*return_counts=*/true);
    const auto ends = counts.cumsum(0).to(torch::kFloat64);
    const auto ranks = (ends - (counts.to(torch::kFloat64) - 1) / 2).index_select(0, which);
    const auto ones = targets.sum(), zeros = targets.numel() - ones;
    return ((ranks * targets).sum() - ones * (ones + 1) / 2) / (ones * zeros);
  }

  bool of_classes_;
  std::int64_t labels_;
  std::vector<torch::Tensor> scores_, targets_;  // [samples, labels]
};

// Several labels: which are predicted, which are right, and of which samples.
struct Labelled {
  Labelled(const torch::Tensor& output, const torch::Tensor& all, std::int64_t labels) {
    const auto logits = by_label(output, all, labels), target = by_label(all, all, labels);
    is_known = ~target.isnan();
    is_said = (logits > 0) & is_known;
    is_true = target > 0.5;
    is_right = (is_said == is_true) & is_known & ~logits.isnan();
  }
  torch::Tensor is_known, is_said, is_true, is_right;
};

class LabelAccuracy final : public Mean {
 public:
  LabelAccuracy(std::string name, std::int64_t labels, bool of_subsets)
      : Mean(std::move(name)), labels_(labels), of_subsets_(of_subsets) {}
  void update(const torch::Tensor& output, const torch::Tensor& target) override {
    const Labelled all(output, target, labels_);
    const auto right = of_subsets_ ? (all.is_right | ~all.is_known).all(1) : all.is_right;
    count(right.to(torch::kFloat64), of_subsets_ ? all.is_known.any(1) : all.is_known);
  }

 private:
  std::int64_t labels_;
  bool of_subsets_;
};

class LabelOverlap final : public Metric {
 public:
  LabelOverlap(std::string name, std::int64_t labels) : name_(std::move(name)), labels_(labels) {}
  std::string name() const override { return name_; }
  void reset() override { counts_ = torch::Tensor(); }
  void update(const torch::Tensor& output, const torch::Tensor& target) override {
    const Labelled all(output, target, labels_);
    const auto counts = at::stack({(all.is_said & all.is_true).sum(0), all.is_said.sum(0) + all.is_true.sum(0)});
    counts_ = counts_.defined() ? counts_ + counts : counts;
  }
  torch::Tensor value() const override {
    if (!counts_.defined()) return at::full({}, NAN, torch::kFloat64);
    return overlap_of(name_, counts_[0], counts_[1]).mean();
  }
  std::optional<State> state_dict() const override { return counts_.defined() ? State{{"counts", counts_}} : State{}; }
  void add(const State& state) override { add_to(counts_, state, "counts"); }

 private:
  std::string name_;
  std::int64_t labels_;
  torch::Tensor counts_;  // [2, labels]: of each right predictions, and predictions and targets
};

// Computes a metric of two classes from one logit for each sample: class 0 has the logit 0.
class OfOneLabel final : public Metric {
 public:
  explicit OfOneLabel(MetricPtr metric) : metric_(std::move(metric)) {}
  std::string name() const override { return metric_->name(); }
  void reset() override { metric_->reset(); }
  void update(const torch::Tensor& output, const torch::Tensor& target) override {
    const auto logits = by_label(output, target, 1).squeeze(1), right = target.reshape({-1});
    metric_->update(at::stack({at::zeros_like(logits), logits}, 1),
                    (right > 0.5).to(torch::kInt64).masked_fill(right.isnan(), -1));
  }
  torch::Tensor value() const override { return metric_->value(); }
  std::optional<State> state_dict() const override { return metric_->state_dict(); }
  void add(const State& state) override { metric_->add(state); }

 private:
  MetricPtr metric_;
};

// A metric of numbers, from sums of the errors and of the targets. As in scikit-learn, rmse and r2 are those of each
// output, and then the mean over the outputs.
class OfErrors final : public Metric {
 public:
  enum class Kind { mae, rmse, r2 };
  OfErrors(std::string name, Kind kind) : name_(std::move(name)), kind_(kind) {}
  std::string name() const override { return name_; }
  void reset() override { count_ = 0, errors_ = mean_ = spread_ = extremes_ = torch::Tensor(); }

  void update(const torch::Tensor& output, const torch::Tensor& target) override {
    if (output.numel() != target.numel() || (output.dim() > 0 && output.size(0) != target.size(0))) {
      refuse(c10::str(name_, " needs as many outputs as targets, and has ", output.sizes(), " and ", target.sizes()));
    }
    if (target.numel() == 0) return;
    const auto rows = kind_ == Kind::mae ? target.numel() : target.size(0);
    const auto wide = target.reshape({rows, -1}).to(torch::kFloat64);
    const auto error = output.reshape({rows, -1}).to(torch::kFloat64) - wide;
    if (!errors_.defined()) errors_ = mean_ = spread_ = at::zeros({wide.size(1)}, wide.options());
    if (errors_.size(0) != wide.size(1)) {
      refuse(
          c10::str(name_, " needs as many numbers in each sample, and has ", errors_.size(0), " and ", wide.size(1)));
    }
    errors_ = errors_ + (kind_ == Kind::mae ? error.abs() : error.square()).sum(0);
    const auto mean = wide.mean(0);
    if (kind_ == Kind::r2) {
      add_spread(rows, mean, (wide - mean).square().sum(0));
      widen(at::stack({wide, -wide}).amax(1));
    }
    count_ += rows;
  }
  std::optional<State> state_dict() const override {
    State state;
    state.put("count", count_);
    if (count_ == 0) return state;
    state.put("errors", errors_);
    state.put("mean", mean_);
    state.put("spread", spread_);
    if (kind_ == Kind::r2) state.put("extremes", extremes_);
    return state;
  }
  void add(const State& state) override {
    const auto count = state.integer("count");
    if (count == 0) return;
    const auto more = state.tensor("errors");
    if (!errors_.defined()) errors_ = mean_ = spread_ = at::zeros_like(more);
    const auto here = [&](const char* name) { return state.tensor(name).to(errors_.device()); };
    errors_ = errors_ + here("errors");
    if (kind_ == Kind::r2) {
      add_spread(count, here("mean"), here("spread"));
      widen(here("extremes"));
    }
    count_ += count;
  }
  torch::Tensor value() const override {
    if (count_ == 0) return at::full({}, NAN, torch::kFloat64);
    if (kind_ == Kind::r2) return r2();
    const auto mean = errors_ / count_;
    return (kind_ == Kind::rmse ? mean.sqrt() : mean).mean();
  }

 private:
  // Outputs whose target is constant have none, and are left out; NaN where all are.
  torch::Tensor r2() const {
    const auto varies = extremes_[0] != -extremes_[1];
    const auto each = at::where(varies, 1 - errors_ / spread_, at::zeros_like(spread_));
    return each.sum() / varies.sum();
  }

  void widen(const torch::Tensor& extremes) {
    extremes_ = extremes_.defined() ? at::maximum(extremes_, extremes) : extremes;
  }

  // The squares around the mean, of two parts together: Chan et al., "Updating formulae …", 1979.
  void add_spread(std::int64_t count, const torch::Tensor& mean, const torch::Tensor& spread) {
    const auto more = static_cast<double>(count), all = static_cast<double>(count_) + more;
    const auto apart = mean - mean_;
    spread_ = spread_ + spread + apart.square() * (static_cast<double>(count_) * more / all);
    mean_ = mean_ + apart * (more / all);
  }

  std::string name_;
  Kind kind_;
  std::int64_t count_ = 0;                // number of rows: samples, or for mae numbers
  torch::Tensor errors_, mean_, spread_;  // [outputs]
  torch::Tensor extremes_;                // [2, outputs]: the largest targets, and the least ones negated
};

// Scores and relevances [groups, items], in float64, for a metric of rankings.
struct Ranked {
  Ranked(const std::string& name, const torch::Tensor& output, const torch::Tensor& target) {
    if (output.dim() != 2 || output.sizes() != target.sizes()) {
      refuse(c10::str(name, " needs scores and relevances [groups, items], and has ", output.sizes(), " and ",
                      target.sizes()));
    }
    is_item = ~target.isnan();
    relevance = at::where(is_item, target, at::zeros({}, target.options())).to(torch::kFloat64);
    scores = output.to(torch::kFloat64);
  }
  torch::Tensor scores, relevance, is_item;
};

class Ndcg final : public Mean {
 public:
  Ndcg(std::string name, std::int64_t k) : Mean(std::move(name)), k_(k) {}
  void update(const torch::Tensor& output, const torch::Tensor& target) override {
    const Ranked all(name(), output, target);
    const auto& gains = all.relevance;
    const auto places = at::arange(1, gains.size(1) + 1, gains.options());
    const auto discounts = at::where(places <= k_, 1 / at::log2(places + 1), at::zeros({}, gains.options()));
    const auto best = (std::get<0>(gains.sort(1, /*descending=*/true)) * discounts).sum(1);
    // An item's discount is the mean over the places that items of its score share. Each row below is an item's.
    const auto both = all.is_item.unsqueeze(1) & all.is_item.unsqueeze(2);
    const auto before = (both & (all.scores.unsqueeze(1) > all.scores.unsqueeze(2))).sum(2);
    const auto same = (both & (all.scores.unsqueeze(1) == all.scores.unsqueeze(2))).sum(2).clamp_min(1);
    const auto sums = at::cat({at::zeros({1}, discounts.options()), discounts.cumsum(0)});
    const auto shared = (sums.index_select(0, (before + same).flatten()) - sums.index_select(0, before.flatten()));
    const auto got = (gains * shared.view_as(gains) / same).sum(1);
    const auto is_wrong = (all.scores.isnan() & all.is_item).any(1);
    count(at::where(is_wrong, at::full({}, NAN, got.options()), got / best), best > 0);
  }

 private:
  std::int64_t k_;
};

class ReciprocalRank final : public Mean {
 public:
  ReciprocalRank() : Mean("mrr") {}
  void update(const torch::Tensor& output, const torch::Tensor& target) override {
    const Ranked all(name(), output, target);
    const auto is_relevant = all.relevance > 0;
    const auto least = at::full({}, -HUGE_VAL, all.scores.options());
    const auto best = std::get<0>(at::where(is_relevant, all.scores, least).max(1, /*keepdim=*/true));
    const auto place = (all.is_item & ~is_relevant & ~(all.scores < best)).sum(1) + 1;
    count(1 / place.to(torch::kFloat64), is_relevant.any(1));
  }
};

}  // namespace

Metric::~Metric() = default;

const std::vector<MetricInfo>& metric_infos() {
  constexpr auto lower = Better::lower, higher = Better::higher;
  static const std::vector<MetricInfo> all = {
      {"accuracy", higher, "ratio", "share of the samples whose class is right", 0, 1},
      {"subset_accuracy", higher, "ratio", "share of the samples whose labels are all right", 0, 1},
      {"top_k", higher, "ratio", "share of the samples whose class is among the k likeliest; top_5", 0, 1},
      {"f1", higher, "ratio", "mean of the f1 of the classes that occur, as target or prediction, or of several labels",
       0, 1},
      {"dice", higher, "ratio", "the same, but of one label that of the label alone, such as the pixels of a mask", 0,
       1},
      {"iou", higher, "ratio", "mean over the same of the intersection over the union of target and prediction", 0, 1},
      {"auc", higher, "ratio",
       "area under the receiver operating characteristic of two classes; of several labels the mean", 0, 1},
      {"perplexity", lower, "", "exponential of the mean cross-entropy", 1},
      {"mae", lower, "", "mean absolute error, in the unit of the target", 0},
      {"rmse", lower, "", "root of the mean squared error, in the unit of the target", 0},
      {"r2", higher, "", "share of the target's variance that is explained; 0 for its mean", -HUGE_VAL, 1},
      {"ndcg_k", higher, "ratio", "gain of the k first items of a group over that of the best order; ndcg_10", 0, 1},
      {"mrr", higher, "ratio", "mean over the groups of 1 / place of the first relevant item", 0, 1}};
  return all;
}

MetricInfo Metric::info() const {
  auto kind = name();
  const auto end = kind.find_last_not_of("0123456789") + 1;  // end of "top_" in "top_5"
  if (end < kind.size() && kind[end - 1] == '_') kind.replace(end, kind.npos, "k");
  const auto found = std::ranges::find(metric_infos(), kind, &MetricInfo::name);
  MetricInfo info = found == metric_infos().end() ? MetricInfo{} : *found;
  info.name = name();
  return info;
}

std::optional<State> Metric::state_dict() const {
  return std::nullopt;
}
void Metric::add(const State&) {
  throw Error("the metric " + name() + " has no add(), so it cannot count what another rank has seen");
}

MetricPtr accuracy() {
  return std::make_unique<TopK>("accuracy", 1);
}
MetricPtr top_k(std::int64_t k) {
  if (k < 1) refuse(c10::str("top_", k, " is not a metric: k must be at least 1"));
  return std::make_unique<TopK>(c10::str("top_", k), k);
}
MetricPtr f1(std::int64_t classes) {
  return std::make_unique<Overlap>("f1", classes);
}
MetricPtr perplexity() {
  return std::make_unique<CrossEntropy>();
}
MetricPtr auc() {
  return std::make_unique<Auc>(0);
}
MetricPtr mean_absolute_error() {
  return std::make_unique<OfErrors>("mae", OfErrors::Kind::mae);
}
MetricPtr root_mean_squared_error() {
  return std::make_unique<OfErrors>("rmse", OfErrors::Kind::rmse);
}
MetricPtr r_squared() {
  return std::make_unique<OfErrors>("r2", OfErrors::Kind::r2);
}

MetricPtr ndcg(std::int64_t k) {
  if (k < 1) refuse(c10::str("ndcg_", k, " is not a metric: k must be at least 1"));
  return std::make_unique<Ndcg>(c10::str("ndcg_", k), k);
}
MetricPtr mean_reciprocal_rank() {
  return std::make_unique<ReciprocalRank>();
}

namespace {

bool is_overlap(const std::string& name) {
  return name == "f1" || name == "dice" || name == "iou";
}

// Refuses a metric that does not fit. Names of no metric are left to metric_by_name().
void require_fitting(const std::string& name, const Targets& targets) {
  using Kind = Targets::Kind;
  const auto what = targets.kind;
  if (what == Kind::unknown) return;
  const bool is_of_numbers = name == "mae" || name == "rmse" || name == "r2";
  const bool is_of_both = name == "accuracy" || name == "auc" || is_overlap(name);
  const bool is_of_classes = is_of_both || name == "perplexity" || name.starts_with("top_");
  const auto unfit = [&](const std::string& reason) {
    refuse("`metrics` has \"" + name + "\", which is " + reason + "; leave it out");
  };
  const bool is_of_ranks = name == "mrr" || name.starts_with("ndcg_");
  if (is_of_ranks && what != Kind::ranks) unfit("for a ranking, and the task ranks nothing");
  if ((is_of_numbers || is_of_classes) && what == Kind::ranks) unfit("not for a ranking, which has ndcg_10 and mrr");
  if (name == "subset_accuracy" && what != Kind::labels) unfit("for several labels of a sample, and the task has none");
  if (is_of_numbers && what != Kind::numbers) unfit("for numbers, and the task predicts classes");
  if (name == "auc" && what == Kind::numbers) unfit("for two classes, and the task predicts numbers");
  if (is_of_classes && what == Kind::numbers) unfit("for classes, and the task predicts numbers");
  if (is_of_classes && !is_of_both && what == Kind::labels) unfit("for classes, and the loss is of labels");
  if (name == "auc" && what == Kind::classes && targets.count != 2) {
    unfit(c10::str("for two classes, and the task has ", targets.count));
  }
}

}  // namespace

MetricPtr metric_by_name(const std::string& name, const Targets& targets) {
  require_fitting(name, targets);
  const bool of_labels = targets.kind == Targets::Kind::labels, of_one = of_labels && targets.count == 1;
  if (of_one && (name == "accuracy" || name == "f1")) return std::make_unique<OfOneLabel>(metric_by_name(name, {}));
  if (name == "subset_accuracy" || (of_labels && name == "accuracy"))
    return std::make_unique<LabelAccuracy>(name, targets.count, name != "accuracy");
  if (of_labels && is_overlap(name)) return std::make_unique<LabelOverlap>(name, targets.count);
  if (name == "auc") return std::make_unique<Auc>(of_labels ? targets.count : 0);
  if (name == "accuracy") return accuracy();
  if (is_overlap(name)) return std::make_unique<Overlap>(name, std::max<std::int64_t>(targets.count, 2));
  if (name == "perplexity") return perplexity();
  if (name == "mae") return mean_absolute_error();
  if (name == "rmse") return root_mean_squared_error();
  if (name == "r2") return r_squared();
  if (name == "mrr") return mean_reciprocal_rank();
  for (const auto& [start, make] :
       {std::pair<const char*, MetricPtr (*)(std::int64_t)>("top_", top_k), {"ndcg_", ndcg}}) {
    if (!name.starts_with(start)) continue;
    std::int64_t k = 0;
    const auto* end = name.data() + name.size();
    const auto [last, status] = std::from_chars(name.data() + std::string_view(start).size(), end, k);
    if (status == std::errc() && last == end) return make(k);
  }
  static const std::vector<std::string> all = {"accuracy", "subset_accuracy", "top_5", "f1",  "dice",
                                               "iou",      "perplexity",      "auc",   "mae", "rmse",
                                               "r2",       "ndcg_10",         "mrr"};
  const auto near = nearest(name, all);
  std::string text = "there is no metric \"" + name + "\"";
  if (!near.empty()) text += "; did you mean " + near + "?";
  if (nearest(name, {"validation_loss"}) == "validation_loss") text += "; the validation loss is measured anyway";
  text += near.empty() ? "; there are " : " There are ";
  for (const auto& each : all) text += (&each == &all.front() ? "" : &each == &all.back() ? " and " : ", ") + each;
  refuse(text + " (top_ and ndcg_ with any number)");
}

std::vector<MetricPtr> metrics_by_name(std::vector<std::string> names, const Targets& targets) {
  using Kind = Targets::Kind;
  if (names.empty()) {
    if (targets.kind == Kind::classes) names = {"accuracy", "f1"};
    if (targets.kind == Kind::classes && targets.count == 2) names.emplace_back("auc");
    if (targets.kind == Kind::labels) names = {"accuracy", "subset_accuracy", "f1", "auc"};
    if (targets.kind == Kind::numbers) names = {"mae", "rmse", "r2"};
    if (targets.kind == Kind::ranks) names = {"ndcg_10", "mrr"};
  }
  std::vector<MetricPtr> metrics;
  for (const auto& name : names) metrics.push_back(metric_by_name(name, targets));
  return metrics;
}

}  // namespace vernier
