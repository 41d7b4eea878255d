// tabular: trains on a table, from a CSV file or NumPy arrays, to predict a class or a number.
//
// data                  required: CSV file, or .npy file with numbers [rows, columns]
// target = ""           CSV: the column that is predicted; required
// targets = ""          .npy: the file of the targets, [rows]; required
// kind = "auto"         classification | regression | auto: whole numbers in `targets` and words are classes
// validation = ""       file with the same columns that is held out
// validation_targets = ""  .npy: its targets
// validation_share = 0.1   of the rows that is held out at random, where `validation` is not given; 0: none
// columns = []          CSV: the columns to use; []: all but the target
// categories = []       CSV: columns whose numbers are names of categories, such as postcodes
// separator = ","       CSV: also ";" and "\t"
// header = true         CSV: the first line has the names; false: columns are "1", "2", …
// missing = "refuse"    CSV: a missing number is refused, or becomes the "mean" of its column, or "zero"
// hidden = [64, 64]     widths of the layers, with relu between them
// residual = false      blocks of two layers that add to their input; all widths must be equal
// dropout = 0.0         after each layer
// balanced = false      classification: draw all classes equally often
// metrics = []          names; []: accuracy and f1, and auc for two classes; or mae, rmse and r2
// batch_size = 32, order = "shuffled", drop_last = false, workers = 1, prefetch = 2, recompute = "none"
//                       see docs/data.md; recompute computes each layer again in backward
//
// Numbers are standardised with mean and deviation of the training rows, which are buffers of the model. Categories get
// embeddings. A category that training has not seen gets zeros, the mean of what embeddings begin with, so the other
// columns decide. The loss of a regression is the mean squared error over the variance of the training targets, so 1 is
// as good as their mean.
#include <ATen/ops/cross_entropy_loss.h>
#include <ATen/ops/mse_loss.h>
#include <torch/types.h>
#include <vernier/csv.h>
#include <vernier/data_source.h>
#include <vernier/numpy.h>
#include <vernier/predictor.h>
#include <vernier/sdk.h>
#include <vernier/supervised_task.h>

#include <algorithm>
#include <utility>

#include "network.h"

namespace {

using vernier::between;
using vernier::DatasetPtr;
using vernier::Options;
using vernier::Run;

constexpr double widest = 1e6;

bool is_array(const std::string& path) {
  return path.ends_with(".npy");
}

struct Part {
  DatasetPtr dataset;
  torch::Tensor numbers, targets;  // of all its samples
};

class Tabular final : public vernier::SupervisedTask, public vernier::Predictor {
 public:
  explicit Tabular(Options& options)
      : SupervisedTask(options),
        data_(options.require<std::string>("data", "CSV file, or .npy file with numbers [rows, columns]")),
        target_(options.get("target", "", "CSV: the column that is predicted")),
        targets_(options.get("targets", "", ".npy: the file of the targets, [rows]")),
        kind_(options.choose("kind", "auto", {"auto", "classification", "regression"}, "what is predicted")),
        validation_(options.get("validation", "", "file with the same columns that is held out")),
        validation_targets_(options.get("validation_targets", "", ".npy: its targets")),
        share_(options.get("validation_share", 0.1, "of the rows that is held out, without `validation`; 0: none",
                           between(0, 0.9))),
        balanced_(options.get("balanced", false, "classification: draw all classes equally often")),
        metrics_(options.get("metrics", std::vector<std::string>{}, "names; []: those usual for the kind")) {
    read_shape(options);
    read_csv_options(options);
    const bool is_npy = is_array(data_);
    if (options.given("data") && is_npy && targets_.empty()) options.refuse("targets", "is missing: name a .npy file");
    if (options.given("data") && !is_npy && target_.empty()) options.refuse("target", "is missing: name a column");
    if (!validation_targets_.empty() && validation_.empty()) options.refuse("validation_targets", "needs `validation`");
    if (is_npy && !validation_.empty() && validation_targets_.empty()) {
      options.refuse("validation_targets", "is missing: name a .npy file");
    }
  }

  void build(Run& run) override {
    const auto whole = is_array(data_) ? read_arrays(data_, targets_) : read_table();
    if (shape_.numbers == 0 && shape_.categories.empty()) refuse("there is no column to learn from but the target");
    auto training = whole;
    Part held_out;
    if (!validation_.empty()) {
      held_out =
          is_array(data_) ? read_arrays(validation_, validation_targets_) : part_of(more_rows(validation_, true));
    } else if (share_ > 0) {
      std::tie(training.dataset, held_out.dataset) = vernier::split(whole.dataset, share_, run.seed);
    }
    if (training.dataset->size() == 0) refuse("no row is left to train on");
    const auto rows = *training.dataset->get_batch(torch::arange(training.dataset->size()));
    training.numbers = rows.front();
    training.targets = rows.back();
    require_classes(whole, held_out);
    make_model(training);
    set_training(training.dataset, balanced_ ? weights_of(training.targets) : torch::Tensor());
    if (held_out.dataset) add_validation(held_out.dataset);
    choose_metrics();
  }

  DatasetPtr read_inputs(const std::string& path) override {
    if (is_array(data_)) return vernier::tensor_dataset({numbers_of(path)});
    return vernier::csv_dataset(more_rows(path, false));
  }

  std::vector<Column> predict(const vernier::Batch& batch) override {
    const auto output = forward(batch);
    if (!is_classification_) return {{target_.empty() ? "prediction" : target_, output.to(torch::kFloat32)}};
    const auto [probability, code] = output.to(torch::kFloat32).softmax(1).max(1);
    const auto* of_class = target_ == "probability" ? "class_probability" : "probability";
    return {{target_.empty() ? "class" : target_, code, labels_}, {of_class, probability}};
  }

  std::string python_model() const override { return tabular::python_source(shape_); }

 private:
  [[noreturn]] void refuse(const std::string& reason) const { vernier::refuse("'" + data_ + "': " + reason); }

  void read_shape(Options& options) {
    shape_.hidden =
        options.get("hidden", std::vector<std::int64_t>{64, 64}, "widths of the layers", between(1, widest));
    shape_.residual = options.get("residual", false, "blocks of two layers that add to their input");
    shape_.dropout = options.get("dropout", 0.0, "share of activations dropped after each layer", between(0, 0.99));
    if (shape_.residual && (shape_.hidden.empty() ||
                            std::ranges::count(shape_.hidden, shape_.hidden.front()) != std::ssize(shape_.hidden))) {
      options.refuse("hidden", "must have equal widths with `residual`, as in [64, 64, 64]");
    }
  }

  void read_csv_options(Options& options) {
    csv_.target = target_;
    csv_.columns =
        options.get("columns", std::vector<std::string>{}, "CSV: the columns to use; []: all but the target");
    for (const auto& name : options.get("categories", std::vector<std::string>{}, "CSV: columns of categories")) {
      csv_.types[name] = vernier::CsvType::category;
    }
    csv_.separator = options.choose("separator", ",", {",", ";", "\t"}, "CSV: between two fields")[0];
    csv_.header = options.get("header", true, "CSV: the first line has the names");
    const auto missing =
        options.choose("missing", "refuse", {"refuse", "mean", "zero"}, "CSV: what becomes of a missing number");
    using Fill = vernier::CsvFill;
    csv_.fill = missing == "mean" ? Fill::mean : missing == "zero" ? Fill::zero : Fill::refuse;
    csv_.sorted = true;  // codes do not depend on the order of the rows
    csv_.unknown = true;
    if (kind_ == "classification" && !target_.empty()) csv_.types[target_] = vernier::CsvType::category;
    if (kind_ == "regression" && !target_.empty()) csv_.types[target_] = vernier::CsvType::number;
  }

  // The rows of another file, in the columns of the first one.
  vernier::CsvTable more_rows(const std::string& path, bool with_target) const {
    auto schema = schema_;
    if (!with_target) schema.target.reset();
    return vernier::read_csv(path, schema, csv_);
  }

  static Part part_of(vernier::CsvTable table) {
    auto targets = table.target;
    return {vernier::csv_dataset(std::move(table)), {}, targets};
  }

  Part read_table() {
    auto table = vernier::read_csv(data_, csv_);
    schema_ = table.schema;
    for (const auto& column : schema_.columns) {
      if (column.type == vernier::CsvType::number) {
        ++shape_.numbers;
      } else {
        shape_.categories.push_back(std::ssize(column.vocabulary) + 1);
      }
    }
    is_classification_ = schema_.target->type == vernier::CsvType::category;
    labels_ = schema_.target->vocabulary;
    classes_ = std::ssize(labels_);
    return part_of(std::move(table));
  }

  torch::Tensor numbers_of(const std::string& path) const {
    const auto numbers = vernier::read_npy(path);
    if (numbers.dim() != 2) {
      vernier::refuse(c10::str("'", path, "' has the shape ", numbers.sizes(), "; wanted is [rows, columns]"));
    }
    const auto wide = numbers.to(torch::kFloat32);
    const auto bad = wide.isfinite().all(1).logical_not().nonzero();
    if (bad.size(0) > 0) {
      vernier::refuse(c10::str("'", path, "' has a number that is not finite in row ", bad[0].item<std::int64_t>()));
    }
    if (shape_.numbers != 0 && wide.size(1) != shape_.numbers) {
      vernier::refuse(c10::str("'", path, "' has ", wide.size(1), " columns, and '", data_, "' has ", shape_.numbers));
    }
    return wide;
  }

  Part read_arrays(const std::string& data, const std::string& targets) {
    const bool is_first = shape_.numbers == 0;
    const auto numbers = numbers_of(data);
    shape_.numbers = numbers.size(1);
    const auto source = vernier::read_source(targets);
    if (source.tensor.dim() != 1 || source.tensor.size(0) != numbers.size(0)) {
      vernier::refuse(c10::str("'", targets, "' has the shape ", source.tensor.sizes(), "; wanted is [",
                               numbers.size(0), "], a target for each row of '", data, "'"));
    }
    const bool has_whole_numbers = !source.tensor.is_floating_point();
    if (is_first) is_classification_ = kind_ == "classification" || (kind_ == "auto" && has_whole_numbers);
    if (!is_classification_) vernier::require_finite(source);
    vernier::Classes classes{classes_, labels_};
    const auto target = is_classification_ ? vernier::codes_of(source, classes, "set kind = \"regression\"")
                                           : source.tensor.to(torch::kFloat32);
    if (is_classification_) classes_ = classes.count, labels_ = classes.words;
    if (is_first && is_classification_) info(vernier::counted(classes, target));
    return {vernier::dataset_of({numbers, target}, data, vernier::fingerprint_of({numbers, target})), {}, target};
  }

  void require_classes(const Part& whole, const Part& held_out) const {
    if (!is_classification_) {
      if (balanced_) refuse("`balanced` is for classes, and the target is a number");
      return;
    }
    if (classes_ < 2) refuse(c10::str("the target has ", classes_, " class; a classification needs at least 2"));
    for (const auto& targets : {whole.targets, held_out.targets}) {
      if (!targets.defined() || targets.numel() == 0 || targets.max().item<std::int64_t>() < classes_) continue;
      refuse("the held-out rows have a class that the training rows lack");
    }
  }

  void make_model(const Part& training) {
    shape_.outputs = is_classification_ ? classes_ : 1;
    const auto network = std::make_shared<tabular::Network>(
        shape_, [this](const auto& part, const auto& x) { return recomputed(part, x); });
    const auto spread = [](const torch::Tensor& numbers) {
      const auto deviation = numbers.to(torch::kFloat64).std(0, /*unbiased=*/false);
      return torch::where(deviation > 0, deviation,
                          torch::ones_like(deviation));  // a column of one value stays as it is
    };
    if (shape_.numbers > 0) {
      network->mean.copy_(training.numbers.to(torch::kFloat64).mean(0));
      network->deviation.copy_(spread(training.numbers));
    }
    if (!is_classification_) {
      network->target_mean.copy_(training.targets.to(torch::kFloat64).mean());
      network->target_deviation.copy_(spread(training.targets));
    }
    const std::size_t target = shape_.categories.empty() ? 1 : 2;
    keep_float_inputs();
    set_model(network, [net = network.get(), has_categories = !shape_.categories.empty()](const vernier::Batch& batch) {
      return net->forward(batch.tensors.at(0), has_categories ? batch.tensors.at(1) : torch::Tensor());
    });
    if (is_classification_) {
      set_loss([](const auto& output, const auto& classes) { return at::cross_entropy_loss(output, classes); }, target);
    } else {
      const auto loss = [net = network.get()](const auto& output, const auto& numbers) {
        const auto unit = net->target_deviation.to(output.scalar_type());
        return at::mse_loss(output / unit, numbers / unit);
      };
      set_loss(loss, target);
    }
  }

  static torch::Tensor weights_of(const torch::Tensor& classes) {
    const auto counts = classes.bincount().to(torch::kFloat64).clamp_min(1);
    return counts.reciprocal().index_select(0, classes);
  }

  void choose_metrics() {
    if (metrics_.empty()) {
      metrics_ = is_classification_ ? std::vector<std::string>{"accuracy", "f1"}
                                    : std::vector<std::string>{"mae", "rmse", "r2"};
      if (is_classification_ && classes_ == 2) metrics_.emplace_back("auc");
    }
    for (const auto& name : metrics_) {
      vernier::require_fitting_metric(
          name, is_classification_ ? vernier::Predicts::classes : vernier::Predicts::numbers, classes_);
      add_metric(vernier::metric_by_name(name, classes_));
    }
  }

  std::string data_, target_, targets_, kind_, validation_, validation_targets_;
  double share_;
  bool balanced_;
  std::vector<std::string> metrics_;
  tabular::Shape shape_;
  vernier::CsvOptions csv_;
  vernier::CsvSchema schema_;
  bool is_classification_ = false;
  std::int64_t classes_ = 0;
  std::vector<std::string> labels_;
};

}  // namespace

VERNIER_PLUGIN(Tabular, "tabular", "1.0.0")
