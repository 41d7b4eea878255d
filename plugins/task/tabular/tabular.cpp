// tabular: trains on a table, from a CSV file or NumPy arrays, to predict a class or a number.
//
// data                  required: CSV file, or numbers [rows, columns] in x.npy or x.npz:NAME
// target = ""           CSV: the column that is predicted; required
// targets = ""          arrays: the targets, [rows], as in y.npy or x.npz:y; required
// kind = "auto"         classification | regression | auto: words and whole numbers of few kinds are classes
// validation = ""       file with the same columns that is held out
// validation_targets = ""  arrays: its targets
// validation_share = 0.1   of the rows that is held out, where `validation` is not given; 0: none
// split = "auto"        how they are drawn: random; stratified, by class; group:COLUMN, whole groups; last, those at
//                       the end; auto: stratified for classes, else random
// columns = []          CSV: the columns to use; []: all but the target
// leave_out = []        CSV: columns that are not used
// types = {}            CSV: number | category | date | day-month-year | month-day-year by column: {zip = "category"}
// missing = "refuse"    CSV: a missing value is refused, becomes the "mean" of its column or "zero" (a category: a word
//                       of its own), or "drop": its row is not used; without a target a row is not used in all three
// missing_words = ["NA", "N/A", "NaN", "nan", "NULL", "null", "#N/A", "n/a", "NaT", "?"]
//                       CSV: the words for "no value"; an empty cell has none, too
// separator = ""        CSV: between two fields: , ; | tab or blank; "": it is found
// decimal = "."         CSV: or ","; unless it is given, columns such as 2.085 and 882 are refused
// thousands = ""        CSV: between groups of three digits: , . ' or blank
// encoding = "utf-8"    CSV: or "latin-1"
// header = true         CSV: the first line has the names; false: columns are "1", "2", …; unless it is given, a
//                       first line that looks like data is refused
// skip_lines = 0        CSV: lines before the header
// hidden = [64, 64]     widths of the layers, with relu between them
// residual = false      blocks of two layers that add to their input; all widths must be equal
// dropout = 0.0         after each layer
// balanced = false      classification: draw all classes equally often
// class_weights = "none"  classification: or "balanced": in the loss all classes weigh the same in sum
// metrics = []          names; []: accuracy and f1, and auc for two classes; or mae, rmse and r2
// batch_size = 32, order = "shuffled", drop_last = false, workers = 1, prefetch = 2, fold = "", recompute = "none"
//                       see docs/guides/data.md; recompute computes each layer again in backward
//
// All that is learned of data is learned of the training rows: words of categories, fill values, and mean and
// deviation, by which numbers are standardised and which are buffers of the model. Categories get embeddings. A
// category that training has not seen gets zeros, the mean of what embeddings begin with, so the other columns decide.
// Dates become numbers and parts of the calendar. The loss of a regression is the mean squared error over the variance
// of the training targets, so 1 is as good as their mean.
#include <ATen/ops/cross_entropy_loss.h>
#include <ATen/ops/mse_loss.h>
#include <c10/util/StringUtil.h>
#include <torch/types.h>
#include <vernier/data/csv.h>
#include <vernier/data/data_source.h>
#include <vernier/data/digits.h>
#include <vernier/data/predictor.h>
#include <vernier/data/split.h>
#include <vernier/data/supervised_task.h>
#include <vernier/data/trainer_program.h>
#include <vernier/draft/capture.h>
#include <vernier/sdk.h>

#include <algorithm>
#include <utility>

#include "../predicted.h"
#include "../units.h"
#include "data.h"
#include "network.h"
#include "onnx.h"

namespace {

using tabular::Data;
using vernier::between;
using vernier::DatasetPtr;
using vernier::Options;
using vernier::Run;
using vernier::SplitRows;

constexpr double widest = 1e6;

bool is_array(const std::string& source) {
  const auto path = vernier::file_of(source);
  return path.ends_with(".npy") || path.ends_with(".npz");
}

// The samples of some rows.
DatasetPtr part_of(const Data& data, const torch::Tensor& rows) {
  return rows.numel() == data.dataset->size() ? data.dataset : vernier::subset(data.dataset, rows);
}

// To draw all classes equally often: for each row one over the rows of its class.
torch::Tensor weights_of(const torch::Tensor& classes) {
  const auto counts = classes.bincount().to(torch::kFloat64).clamp_min(1);
  return counts.reciprocal().index_select(0, classes);
}

class Tabular final : public vernier::SupervisedTask,
                      public vernier::Predictor,
                      public vernier::OnnxExportable,
                      public vernier::TrainerExportable,
                      public vernier::draft::Capturable {
 public:
  explicit Tabular(Options& options)
      : SupervisedTask(options),
        data_(options.require<std::string>(
            "data", "CSV file, several as in x-*.csv, or numbers [rows, columns] in x.npy or x.npz:NAME")),
        target_(options.get("target", "", "CSV: the column that is predicted")),
        targets_(options.get("targets", "", "arrays: the targets, [rows], as in y.npy or x.npz:y")),
        kind_(options.choose("kind", "auto", {"auto", "classification", "regression"}, "what is predicted")),
        validation_(options.get("validation", "", "file with the same columns that is held out")),
        validation_targets_(options.get("validation_targets", "", "arrays: its targets")),
        share_(options.get("validation_share", 0.1, "of the rows that is held out, without `validation`; 0: none",
                           between(0, 0.9))),
        split_(options.get("split", "auto", "of the rows: random, stratified, group:COLUMN, last or auto")),
        balanced_(options.get("balanced", false, "classification: draw all classes equally often")),
        class_weights_(options.choose("class_weights", "none", {"none", "balanced"}, "classification: in the loss")),
        metrics_(options.get("metrics", std::vector<std::string>{}, "names; []: those usual for the kind")) {
    for (const char* key : {"data", "targets", "validation", "validation_targets"})
      options.resumable(key);  // content counts, not path
    read_shape(options);
    read_csv_options(options);
    read_split(options);
    const bool has_arrays = is_array(data_);
    if (options.given("data") && has_arrays && targets_.empty())
      options.refuse("targets", "is missing: name an array, as in y.npy or x.npz:y");
    if (options.given("data") && !has_arrays && target_.empty()) options.refuse("target", "is missing: name a column");
    if (!validation_targets_.empty() && validation_.empty()) options.refuse("validation_targets", "needs `validation`");
    if (has_arrays && !validation_.empty() && validation_targets_.empty()) {
      options.refuse("validation_targets", "is missing: name an array, as in y.npy or x.npz:y");
    }
  }

  void build(Run& run) override {
    seed_ = run.seed;
    if (is_trained()) {
      facts_ = tabular::Facts::parse(learned().text("table"));
      require_same_target();
      if (!facts_.is_array) facts_.read_as(csv_);
    }
    Data data;
    SplitRows split;
    if (!is_trained()) {
      learn(data, split);
    } else if (reads_data()) {
      read_again(data, split);
    }
    facts_.put_columns(shape_);
    if (shape_.numbers == 0 && shape_.categories.empty()) refuse("there is no column to learn from but the target");
    if (!facts_.is_classification && (balanced_ || class_weights_ != "none")) {
      refuse(std::string(balanced_ ? "`balanced`" : "`class_weights`") + " is for classes, and the target is a number");
    }
    make_model(data, split.training);
    choose_loss();
    for (auto& metric : vernier::metrics_by_name(metrics_, this->targets())) add_metric(std::move(metric));
    if (!data.dataset) return;
    const auto targets = data.targets.index_select(0, split.training);
    set_training(part_of(data, split.training), balanced_ ? weights_of(targets) : torch::Tensor());
    if (!is_trained()) learn_targets(vernier::target_facts(targets, this->targets()));
    if (split.held_out.numel() > 0) {
      add_validation(part_of(data, split.held_out));
    } else if (!is_trained() && !validation_.empty()) {
      const auto held_out = read_more(validation_, validation_targets_);
      add_validation(part_of(held_out, held_out.rows));
    }
  }

  DatasetPtr read_inputs(const std::string& path) override {
    if (is_array(data_))
      return vernier::tensor_dataset({tabular::read_numbers(vernier::same_part(data_, path), facts_.numbers)});
    auto table = more_rows(path, false);
    for (const auto& odd : table.found.odd) warn("'", path, "': ", odd);
    return vernier::csv_dataset(std::move(table));
  }

  std::vector<Column> predict(const vernier::Batch& batch) override {
    const auto numbers = forward(batch);
    if (!facts_.is_classification) {
      return {{target_.empty() ? "prediction" : target_,
               in_units(numbers, network_->target_mean, network_->target_deviation)}};
    }
    return columns_of(targets(), numbers, batch.samples, target_);
  }

  vernier::ExportedModel onnx_model() override { return tabular::onnx_model(*network_, facts_, csv_.fill); }
  std::string description() const override { return facts_.json(); }
  std::string python_model() const override { return tabular::python_source(shape_, facts_.json()); }

  vernier::TrainerPlan trainer_plan() const override {
    const auto only = [](bool is_known, const char* what) {
      if (!is_known) vernier::refuse(std::string("a trainer cannot have ") + what + " of task/tabular");
    };
    only(!shape_.residual, "the blocks of residual = true");
    only(class_weights_ == "none" && !balanced_, "class_weights or balanced");
    only(csv_.header && csv_.skip_lines == 0, "a file with header = false or skip_lines");
    only(!csv_.is_latin1 && csv_.separator != ' ', "a file with encoding = \"latin-1\" or separator = \" \"");
    return {.classes = facts_.classes,
            .outputs = shape_.outputs,
            .numbers = shape_.numbers,
            .categories = shape_.categories,
            .hidden = shape_.hidden,
            .dropout = shape_.dropout,
            .batch_size = batch_size(),
            .mean = "mean",
            .deviation = "deviation",
            .target_mean = "target_mean",
            .target_deviation = "target_deviation",
            .last_weight = "last.weight",
            .last_bias = "last.bias",
            .output = !target_.empty()           ? target_
                      : facts_.is_classification ? "class"
                                                 : "prediction",
            .columns = facts_.is_array ? "" : facts_.json(),
            .skips_targets = csv_.fill != vernier::CsvFill::refuse,
            .skips_inputs = csv_.fill == vernier::CsvFill::drop};
  }

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
    csv_ = vernier::csv_options(options, {"refuse", "mean", "zero", "drop"});
    csv_.target = target_;
    csv_.columns =
        options.get("columns", std::vector<std::string>{}, "CSV: the columns to use; []: all but the target");
    csv_.leave_out = options.get("leave_out", std::vector<std::string>{}, "CSV: columns that are not used");
    csv_.unknown = true;
    csv_.classes = kind_ == "auto";
    const auto type = csv_.types.find(target_);
    if (type != csv_.types.end() && kind_ != "auto" &&
        (type->second == vernier::CsvType::category) != (kind_ == "classification")) {
      options.refuse("types", "has the target, and kind = \"" + kind_ + "\" says otherwise; leave one of them out");
    }
    if (kind_ == "classification" && !target_.empty()) csv_.types[target_] = vernier::CsvType::category;
    if (kind_ == "regression" && !target_.empty()) csv_.types[target_] = vernier::CsvType::number;
    for (const char* key : {"targets", "validation_targets"}) {
      if (options.given("data") && !is_array(data_) && options.given(key)) {
        options.refuse(key, "is for arrays, and `data` is a CSV file; leave it out");
      }
    }
    if (!is_array(data_)) return;
    for (const char* key : {"target", "columns", "leave_out", "types", "missing", "missing_words", "separator",
                            "decimal", "thousands", "encoding", "header", "skip_lines"}) {
      if (options.given(key)) options.refuse(key, "is for CSV files, and `data` is an array; leave it out");
    }
  }

  void read_split(Options& options) {
    const std::string group = "group:";
    if (split_.starts_with(group) && split_.size() > group.size()) {
      csv_.group = split_.substr(group.size());
      if (csv_.group == target_) options.refuse("split", "has the target as its group; name another column");
      if (is_array(data_)) options.refuse("split", "by group is for CSV files, and `data` is an array");
    } else if (split_ != "auto" && split_ != "random" && split_ != "stratified" && split_ != "last") {
      options.refuse("split", "must be random, stratified, last, group:COLUMN or auto");
    }
    if (!validation_.empty() && share_ > 0 && options.given("validation_share")) idle_ = "validation_share";
    if (split_ == "auto") return;
    if (!validation_.empty()) idle_ = "split";
    if (share_ == 0) options.refuse("split", "has no effect with validation_share = 0; leave one of them out");
  }

  // A trained model keeps its target.
  void require_same_target() const {
    if (!facts_.is_array && target_ != facts_.target()) {
      refuse("target = \"" + target_ + "\", and the trained model predicts '" + facts_.target() + "'");
    }
    if (kind_ != "auto" && (kind_ == "classification") != facts_.is_classification) {
      refuse("kind = \"" + kind_ + "\", and the trained model is of the other kind");
    }
  }

  // The rows to train on and those that are held out, of the rows to use.
  SplitRows divide(const torch::Tensor& rows, const torch::Tensor& all_targets, const torch::Tensor& groups) const {
    if (!validation_.empty() || share_ == 0) return {rows, torch::empty({0}, torch::kInt64)};
    const auto targets = all_targets.index_select(0, rows);
    const bool is_classes = !targets.is_floating_point();
    if (split_ == "stratified" && !is_classes)
      refuse("split = \"stratified\" is for classes, and the target is a number");
    const auto split = split_ == "last"   ? vernier::split_last(rows.numel(), share_)
                       : groups.defined() ? vernier::split_groups(groups.index_select(0, rows), share_, seed_)
                       : is_classes && split_ != "random" ? vernier::split_classes(targets, share_, seed_)
                                                          : vernier::split_random(rows.numel(), share_, seed_);
    return {rows.index_select(0, split.training), rows.index_select(0, split.held_out)};
  }

  // Reads the data to train on and learns the facts of the training rows.
  void learn(Data& data, SplitRows& split) {
    if (!idle_.empty()) refuse("`" + idle_ + "` has no effect with `validation`; leave one of them out");
    if (is_array(data_)) {
      data = tabular::read_arrays(data_, targets_, kind_, true, facts_);
      facts_.is_array = true;
      split = divide(data.rows, data.targets, data.groups);
    } else {
      auto csv = csv_;
      csv.training_rows = [&](const vernier::CsvTable& table) {
        split = divide(table.rows, table.target, table.groups);
        return split.training;
      };
      auto table = vernier::read_csv(data_, csv);
      facts_.schema = table.schema;
      facts_.is_classification = table.schema.target->type == vernier::CsvType::category;
      facts_.classes = table.schema.target->vocabulary;
      facts_.read_as(csv_);
      data = tabular::data_of(std::move(table));
      data.guessed_classes =
          facts_.is_classification && !csv_.types.contains(target_) && tabular::are_whole(facts_.classes);
      data.guessed_numbers =
          csv_.classes && !facts_.is_classification && vernier::are_few_whole(data.targets.index_select(0, data.rows));
    }
    facts_.rows = split.training.numel();
    facts_.fingerprint = data.dataset->fingerprint();
    if (facts_.is_classification) {
      facts_.counts = tabular::counts_of(data.targets.index_select(0, split.training), facts_.classes.size());
    }
    const auto odd = tabular::check_target(facts_, data, split, data_);
    if (share_ > 0 && validation_.empty() && split.held_out.numel() == 0) {
      refuse(csv_.group.empty()
                 ? c10::str("of ", data.rows.numel(), " rows none can be held out",
                            data.targets.is_floating_point() ? "" : ", because each class has a single row",
                            "; set validation_share = 0 or `validation`")
                 : "column '" + csv_.group +
                       "' of `split` has a single group, so none can be held out; set another one");
    }
    info(tabular::summary(facts_, data));
    vernier::warn_if_in_both(id(), {data_}, {validation_});
    const auto& columns = facts_.schema.columns;
    const auto date = std::ranges::find(columns, vernier::CsvType::date, &vernier::CsvColumn::type);
    if (split_ == "auto" && validation_.empty() && share_ > 0 && date != columns.end()) {
      warn("'", data_, "': rows are held out whatever their '", date->name,
           "'; for the last rows set split = \"last\"");
    }
    for (const auto& each : data.found.odd) warn("'", data_, "': ", each);
    for (const auto& each : odd) warn("'", data_, "': ", each);
    if (facts_.is_array) warn_of_constants(data.numbers);
    warn_of_lost_digits(data, split.training);
    auto learned = named().facts({facts_.fingerprint}, part_of(data, split.held_out));
    learned.put("table", facts_.json());
    set_learned(learned);
  }

  // The reader of CSV files says it of theirs.
  void warn_of_constants(const torch::Tensor& numbers) const {
    const auto constant = (numbers == numbers.slice(0, 0, 1)).all(0).nonzero().flatten();
    if (constant.numel() == 0) return;
    const auto first = constant[0].item<std::int64_t>();
    warn("'", data_, "': column ", first,
         constant.numel() > 1 ? c10::str(" (and ", constant.numel() - 1, " more)") : "", " is always ",
         numbers[0][first].item<double>(), ", so nothing is learned from it");
  }

  // Means are taken off in float64, so this is about columns with numbers far apart.
  void warn_of_lost_digits(const Data& data, const torch::Tensor& training) const {
    std::vector<std::string> names;
    for (const auto& column : facts_.schema.columns) {
      for (auto& name : vernier::numbers_of(column)) names.push_back(std::move(name));
    }
    const auto warn_of = [&](const torch::Tensor& numbers, const std::vector<std::string>& of) {
      const auto lost = vernier::lost_digits(numbers, /*is_centred=*/true, of, training);
      if (!lost.empty())
        warn("'", data_, "': ", lost, " once they are standardised; look for numbers far from all others");
    };
    warn_of(data.numbers, names);
    if (!facts_.is_classification) warn_of(data.targets, {facts_.target()});
  }

  vernier::NamedData named() const {
    return {{{data_}, targets_}, {{validation_}, validation_targets_}, "validation", "validation_targets"};
  }

  // Reads data with the facts of the training.
  void read_again(Data& data, SplitRows& split) {
    const auto read_all = [&](const vernier::NamedData::Files& files) {
      data = read_more(files.names[0], files.targets);
      split = {data.rows, data.rows};
      return std::vector{data.dataset->fingerprint()};
    };
    named().read_again(learned(), read_all, [&] {
      split = divide(data.rows, data.targets, data.groups);
      return part_of(data, split.held_out);
    });
  }

  // The samples of another file, with targets.
  Data read_more(const std::string& path, const std::string& targets) {
    if (is_array(data_)) return tabular::read_arrays(path, targets, kind_, false, facts_);
    auto data = tabular::data_of(more_rows(path, true));
    for (const auto& odd : data.found.odd) warn("'", path, "': ", odd);
    return data;
  }

  // The rows of another file, in the columns of the first one.
  vernier::CsvTable more_rows(const std::string& path, bool with_target) const {
    auto schema = facts_.schema;
    if (!with_target) schema.target.reset();
    auto csv = csv_;
    csv.fill_remedy = "give --set task.missing=mean or --set task.missing=zero";
    return vernier::read_csv(path, schema, csv);
  }

  // Without data the buffers stay as they are, until the weights of the trained model come.
  void make_model(const Data& data, const torch::Tensor& training) {
    const auto network = std::make_shared<tabular::Network>(
        shape_, [this](const auto& part, const auto& x) { return recomputed(part, x); });
    if (data.dataset) {
      const auto standardise = [&](const torch::Tensor& numbers) {
        network->standardise(numbers,
                             facts_.is_classification ? torch::Tensor() : data.targets.index_select(0, training));
      };
      // An array may be mapped, and moving its rows would copy its pages.
      facts_.is_array ? standardise(data.numbers.index_select(0, training))
                      : tabular::with_rows(data.numbers, training, standardise);
    }
    const auto forward = [net = network.get(),
                          has_categories = !shape_.categories.empty()](const vernier::Batch& batch) {
      return net->forward(batch.tensors.at(0), has_categories ? batch.tensors.at(1) : torch::Tensor());
    };
    set_model(network, forward, /*keeps_inputs=*/true);
    network_ = network.get();
  }

  void choose_loss() {
    using Kind = vernier::Targets::Kind;
    const std::size_t target = shape_.categories.empty() ? 1 : 2;
    const vernier::Targets are{facts_.is_classification ? Kind::classes : Kind::numbers, std::ssize(facts_.classes),
                               facts_.classes};
    if (!facts_.is_classification) {
      const auto loss = [net = network_](const auto& output, const auto& numbers) {
        return at::mse_loss(output / net->target_deviation, numbers / net->target_deviation);
      };
      set_loss(loss, target, are);
    } else if (class_weights_ == "none") {
      set_loss([](const auto& output, const auto& classes) { return at::cross_entropy_loss(output, classes); }, target,
               are);
    } else {
      set_loss(vernier::balanced_cross_entropy(torch::tensor(facts_.counts)), target, are);
    }
  }

  std::string data_, target_, targets_, kind_, validation_, validation_targets_;
  double share_;
  std::string split_, idle_;  // idle_: the option that `validation` leaves without effect; "": none
  bool balanced_;
  std::string class_weights_;
  std::vector<std::string> metrics_;
  tabular::Shape shape_;
  vernier::CsvOptions csv_;
  tabular::Facts facts_;
  tabular::Network* network_ = nullptr;  // the network in the model
  std::uint64_t seed_ = 0;
};

}  // namespace

VERNIER_PLUGIN(Tabular, "tabular", "1.0.0")
