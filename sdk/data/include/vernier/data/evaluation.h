// Metrics of a model's outputs over a whole validation set. They are exact: the batches' sizes do not change them.
#pragma once

#include <vernier/abi.h>
#include <vernier/metrics.h>
#include <vernier/state.h>
#include <vernier/tensor.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

namespace vernier {

// The targets of a task, which its loss decides. Metrics, predictions, baselines and the tables of `vernier evaluate`
// ask this, and never the shape of a tensor. Dimension 0 is the sample.
struct Targets {
  enum class Kind : std::uint8_t {
    unknown,  // the task does not say; metrics take what they are given
    classes,  // cross entropy: logits [samples, classes, …], int64 targets [samples, …]
    labels,   // binary cross entropy: logits and targets from 0 to 1, [samples] or [samples, labels, …]; NaN: missing
    numbers,  // mse, l1, huber: as many outputs as targets
    ranks,    // scores and relevances [groups, items]; NaN: the group has no more items
  };
  Kind kind = Kind::unknown;
  std::int64_t count = 0;               // number of classes, or of labels or numbers of a sample
  std::vector<std::string> names = {};  // names of the classes or labels, if they have any
};

// For one thread, with gradients off. A metric of your own implements the first four functions. With the last two,
// several ranks share the work of a validation; without them each rank does all of it.
class VERNIER_API Metric {
 public:
  virtual ~Metric();
  virtual std::string name() const = 0;  // name of the number: "accuracy"
  // Its declaration. By default that of metric_infos() for the name, or the name alone.
  virtual MetricInfo info() const;
  virtual void reset() = 0;  // forgets all samples
  // Adds the samples of a batch; dimension 0 is the sample. Both are on the run's device. No host sync.
  virtual void update(const torch::Tensor& output, const torch::Tensor& target) = 0;
  virtual torch::Tensor value() const = 0;  // the number for all samples since reset(): 0-dim; NaN if it is not defined
  virtual std::optional<State> state_dict() const;  // the memory of all samples since reset()
  virtual void add(const State& state);             // counts the samples of another metric of this kind, too
};
using MetricPtr = std::unique_ptr<Metric>;

// For classes. output: logits [samples, classes, …], target: int64 [samples, …], as for cross_entropy_loss. Targets
// below 0 are left out; an output with a NaN is wrong.
VERNIER_API MetricPtr accuracy();                // "accuracy": share of targets with the largest logit
VERNIER_API MetricPtr top_k(std::int64_t k);     // "top_5": share of targets among the k largest logits
VERNIER_API MetricPtr f1(std::int64_t classes);  // "f1": mean over the classes that occur, as target or output (macro)
VERNIER_API MetricPtr perplexity();              // "perplexity": exp of the mean cross-entropy

// For two classes. output: logits [samples, 2, …], or one score for each target; target: 0 or 1. It keeps all scores.
// Scores that are equal count half, so it is the Mann-Whitney statistic. NaN where all targets are of one class.
VERNIER_API MetricPtr auc();  // "auc": area under the receiver operating characteristic

// For numbers: output and target have as many elements, [samples, outputs]. R² is 1 - the sum of squared errors / that
// around the mean target. rmse and r2 are computed for each output, and the mean is taken. r2 leaves out outputs whose
// target is constant; it is NaN where all are.
VERNIER_API MetricPtr mean_absolute_error();      // "mae"
VERNIER_API MetricPtr root_mean_squared_error();  // "rmse"
VERNIER_API MetricPtr r_squared();                // "r2"

// For rankings. output: scores [groups, items], target: the relevance of each item, 0 or more, of the same shape; NaN
// where a group has no more items. Items with the same score share their places evenly. Groups without a relevant item
// are left out.
// "ndcg_10": discounted cumulative gain of the k first items over that of the best order, mean over the groups. The
// gain of an item is its relevance / log2(place + 1), as in scikit-learn: Järvelin and Kekäläinen 2002.
VERNIER_API MetricPtr ndcg(std::int64_t k);
// "mrr": 1 / place of the first item with a relevance above 0, mean over the groups. It is behind items of its score.
VERNIER_API MetricPtr mean_reciprocal_rank();

// By the name that TOML files use: accuracy, subset_accuracy, top_5 (any k), f1, dice, iou, perplexity, auc, mae, rmse,
// r2, ndcg_10 (any k), mrr. Throws Error for any other, and for one that does not fit the targets.
//
// Of labels by pixel or token, each counts as a sample does: accuracy is that of the pixels, iou the mean intersection
// over union, as scikit-learn's jaccard_score with average="macro", and dice the mean Dice coefficient, which is f1.
//
// A label is predicted where its probability is above one half. Of one label, accuracy, f1 and auc are those of two
// classes, and dice and iou those of the label alone. Of several, as in scikit-learn, accuracy is the share of all
// labels that are right, subset_accuracy that of samples whose labels are all right, and f1, dice, iou and auc are
// means over the labels: f1, dice and iou of a label that never occurs are 0, and auc is NaN where the targets of a
// label are all the same. Labels without a target are left out.
VERNIER_API MetricPtr metric_by_name(const std::string& name, const Targets& targets);
// These metrics; without names the usual ones.
VERNIER_API std::vector<MetricPtr> metrics_by_name(std::vector<std::string> names, const Targets& targets);

// The declarations of all of these; the name is "top_k" for top_5, and "ndcg_k" for ndcg_10.
VERNIER_API const std::vector<MetricInfo>& metric_infos();

}  // namespace vernier
