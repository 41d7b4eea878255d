// sequence: trains an LSTM, a GRU or a small transformer on sequences of numbers: it classifies them, predicts numbers
// of them, or forecasts the next values of a series.
//
// data                  required: a source (vernier/data_source.h), such as "x.npy", "x.npz:x", "x.csv:a,b"
// kind = "classification"  data: [samples, steps] or [samples, steps, features]; `targets`: labels [samples]
//                       "regression": the same; `targets`: numbers [samples] or [samples, numbers]
//                       "forecast": data: one series, [steps] or [steps, features], oldest first; no `targets`
// targets = ""          a source
// validation = "", validation_targets = ""  the held-out ones, in the same form
// validation_share = 0.1  share held out without validation: drawn from [run] seed; of a series the last part
// context = 32          "forecast": steps that it sees
// horizon = 1           "forecast": steps after them that it predicts
// stride = 1            "forecast": steps between the beginnings of two windows
// outputs = []          "forecast": the features that it predicts, by number from 0; none: all
// model = "lstm"        or "gru", "transformer"
// width = 64, layers = 1, heads = 4, dropout = 0.0  heads: of the transformer; dropout: between layers or in blocks
// batch_size = 32
// order = "shuffled", drop_last = false, workers = 1, prefetch = 2, recompute = "none"  see vernier/supervised_task.h
//
// Inputs, and targets that are numbers, are normalized with mean and deviation of the training part. These are buffers
// of the model. Outputs are in the units of the data; the loss is the mean squared error in units of the deviation, or
// cross-entropy.
#include <ATen/ops/cross_entropy_loss.h>
#include <ATen/ops/where.h>
#include <vernier/data_source.h>
#include <vernier/predictor.h>
#include <vernier/sdk.h>
#include <vernier/supervised_task.h>

#include <algorithm>
#include <cmath>
#include <numeric>
#include <tuple>

#include "networks.h"

namespace {

using vernier::Batch;
using vernier::between;
using vernier::DatasetPtr;
using vernier::Options;
using vernier::refuse;
using vernier::Run;

torch::Tensor without_zeros(const torch::Tensor& deviation) {
  return at::where(deviation > 0, deviation, at::ones_like(deviation));
}

class Sequence final : public vernier::SupervisedTask, public vernier::Predictor {
 public:
  explicit Sequence(Options& options)
      : SupervisedTask(options, 32),
        data_(options.require<std::string>("data", "source of the sequences, such as x.npy, x.npz:x or x.csv:a,b")),
        kind_(options.choose("kind", "classification", {"classification", "regression", "forecast"},
                             "what is predicted: a class or numbers of each sequence, or the next values of a series")),
        targets_(options.get("targets", "", "source of labels or numbers; none for forecast")),
        held_out_data_(options.get("validation", "", "sequences held out, in the same form")),
        held_out_targets_(options.get("validation_targets", "", "their labels or numbers")),
        share_(options.get("validation_share", 0.1, "share held out without validation; of a series the last part",
                           between(0, 0.9))),
        context_(options.get("context", 32, "steps that a forecast sees", between(1, 1e6))),
        horizon_(options.get("horizon", 1, "steps that it predicts", between(1, 1e6))),
        stride_(options.get("stride", 1, "steps between the beginnings of two windows", between(1, 1e6))),
        outputs_(options.get("outputs", std::vector<std::int64_t>{}, "features that it predicts, from 0; none: all",
                             between(0, 1e6))) {
    plan_.model = options.choose("model", "lstm", {"lstm", "gru", "transformer"}, "the network");
    plan_.width = options.get("width", 64, "of its layers", between(1, 65536));
    plan_.layers = options.get("layers", 1, "of the network", between(1, 1000));
    plan_.heads = options.get("heads", 4, "of the transformer's attention", between(1, 1000));
    plan_.dropout = options.get("dropout", 0.0, "between layers, or in each block of the transformer", between(0, 0.9));
    plan_.has_classes = kind_ == "classification";
    check(options);
  }

  void build(Run& run) override {
    if (kind_ == "forecast") {
      build_forecast();
    } else {
      build_whole(run.seed);
    }
    const auto network =
        make_network(plan_, [this](const Part& part, const torch::Tensor& x) { return recomputed(part, x); });
    network->set_norm(input_mean_, input_std_, output_mean_, output_std_);
    set_model(network);
    keep_float_inputs();
    if (plan_.has_classes) {
      set_loss([](const auto& output, const auto& target) { return at::cross_entropy_loss(output, target); });
      add_metric(vernier::accuracy());
      return;
    }
    set_loss([network = network.get()](const torch::Tensor& output, const torch::Tensor& target) {
      return ((output - target) / network->output_std()).square().mean();
    });
    add_metric(vernier::mean_absolute_error());
    add_metric(vernier::root_mean_squared_error());
    add_metric(vernier::r_squared());
  }

  // A source of the same form as `data`, or a file with the same part in it. A series gives all windows, also the last
  // one, which nothing follows.
  DatasetPtr read_inputs(const std::string& path) override {
    const auto source = read_inputs_of(vernier::same_part(data_, path));
    auto x = source.tensor;
    if (kind_ == "forecast") {
      require_steps(source, context_);
      x = x.unfold(0, context_, stride_).transpose(1, 2);
    }
    require_shape(source.name, x);
    return vernier::dataset_of({x}, source.name, vernier::fingerprint_of({source.tensor}));
  }

  std::vector<Column> predict(const Batch& batch) override {
    const auto output = forward(batch).to(torch::kFloat32);
    if (plan_.has_classes) {
      const auto chances = output.softmax(1);
      return {{"class", chances.argmax(1), words_}, {"probability", chances, {}, words_}};
    }
    if (kind_ == "regression") return {{"value", output}};
    std::vector<Column> columns;
    for (std::size_t i = 0; i < outputs_.size(); ++i) {
      columns.push_back({names_.at(i), output.select(2, static_cast<std::int64_t>(i))});
    }
    return columns;
  }

  std::string python_model() const override { return python_source(plan_); }

 private:
  void check(const Options& options) const {
    if (plan_.model == "transformer" && plan_.width % plan_.heads != 0) {
      options.refuse("heads", c10::str("does not divide a width of ", plan_.width));
    }
    if (plan_.model != "transformer" && plan_.layers == 1 && plan_.dropout > 0) {
      options.refuse("dropout", "is between the layers, and there is one");
    }
    if (data_.empty()) return;  // the options are only described
    if (kind_ == "forecast" && !(targets_ + held_out_targets_).empty()) {
      options.refuse(targets_.empty() ? "validation_targets" : "targets",
                     "is without meaning: a forecast predicts the series itself");
    }
    if (kind_ != "forecast" && targets_.empty()) options.refuse("targets", "is needed for " + kind_);
    if (kind_ != "forecast" && held_out_data_.empty() != held_out_targets_.empty()) {
      options.refuse("validation", "and `validation_targets` are given both or not at all");
    }
    for (const auto output : outputs_) {
      if (std::ranges::count(outputs_, output) > 1) options.refuse("outputs", c10::str("has ", output, " twice"));
    }
    for (const char* key : {"context", "horizon", "stride", "outputs"}) {
      if (kind_ != "forecast" && options.given(key)) options.refuse(key, "is for kind = \"forecast\"");
    }
  }

  // [samples, steps, features], or of a series [steps, features].
  vernier::Source read_inputs_of(const std::string& name) const {
    auto source = vernier::read_source(name);
    const auto dimensions = kind_ == "forecast" ? 2 : 3;
    if (!source.words.empty()) refuse("'" + name + "' has words; sequences are numbers");
    if (source.tensor.dim() == dimensions - 1) source.tensor = source.tensor.unsqueeze(-1);
    if (source.tensor.dim() != dimensions || source.tensor.numel() == 0) {
      refuse(c10::str("'", name, "' has the shape ", source.tensor.sizes(), "; ",
                      kind_ == "forecast" ? "a series has [steps] or [steps, features]"
                                          : "sequences have [samples, steps] or [samples, steps, features]"));
    }
    source.tensor = source.tensor.to(torch::kFloat32);
    vernier::require_finite(source);
    return source;
  }

  // Checks the shape of sequences [samples, steps, features] that are predicted or held out.
  void require_shape(const std::string& name, const torch::Tensor& x) const {
    if (x.size(1) == plan_.steps && x.size(2) == plan_.features) return;
    refuse(c10::str("'", name, "' has ", x.size(1), " steps of ", x.size(2), " features; those to train on have ",
                    plan_.steps, " of ", plan_.features));
  }

  static void require_steps(const vernier::Source& series, std::int64_t steps) {
    if (series.tensor.size(0) >= steps) return;
    refuse(c10::str("'", series.name, "' has ", series.tensor.size(0), " steps, and a window has ", steps));
  }

  // Whole sequences and their targets.
  DatasetPtr read_whole(const std::string& data, const std::string& targets) {
    const auto inputs = read_inputs_of(data);
    auto target = vernier::read_source(targets, words_);
    if (target.tensor.size(0) != inputs.tensor.size(0)) {
      refuse(c10::str("'", data, "' has ", inputs.tensor.size(0), " sequences, and '", targets, "' ",
                      target.tensor.size(0), " targets"));
    }
    if (plan_.has_classes) {
      target.tensor = vernier::labels_of(target, classes_);
      if (classes_ == 0) classes_ = vernier::classes_of(target, target.tensor), words_ = target.words;
      if (classes_ < 2) refuse("'" + targets + "' has a single class; there is nothing to tell apart");
    } else {
      if (!target.words.empty()) refuse("'" + targets + "' has words; set kind = \"classification\"");
      if (target.tensor.dim() == 1) target.tensor = target.tensor.unsqueeze(1);
      if (target.tensor.dim() != 2) {
        refuse(c10::str("'", targets, "' has the shape ", target.tensor.sizes(),
                        "; numbers have [samples] or "
                        "[samples, numbers]"));
      }
      target.tensor = target.tensor.to(torch::kFloat32);
      vernier::require_finite(target);
    }
    return vernier::dataset_of({inputs.tensor, target.tensor}, data,
                               vernier::fingerprint_of({inputs.tensor, target.tensor}));
  }

  void build_whole(std::uint64_t seed) {
    DatasetPtr training = read_whole(data_, targets_), held_out;
    if (!held_out_data_.empty()) {
      held_out = read_whole(held_out_data_, held_out_targets_);
    } else if (share_ > 0) {
      std::tie(training, held_out) = vernier::split(training, share_, seed);
    }
    if (training->size() == 0) refuse("'" + data_ + "' has no sequence left to train on; hold out less");
    const auto all = *training->get_batch(torch::arange(training->size()));
    plan_.steps = all[0].size(1), plan_.features = all[0].size(2);
    set_input_norm(all[0].flatten(0, 1));
    if (plan_.has_classes) {
      plan_.output = {classes_};
    } else {
      plan_.output = {all[1].size(1)};
      output_mean_ = all[1].mean(0);
      output_std_ = without_zeros(all[1].std(0, /*unbiased=*/false));
    }
    set_training(training);
    if (held_out) {
      const auto sample = (*held_out->get_batch(torch::zeros({1}, torch::kInt64)));
      require_shape(held_out_data_, sample[0]);
      if (!plan_.has_classes && sample[1].size(1) != plan_.output[0]) {
        refuse(c10::str("'", held_out_targets_, "' has ", sample[1].size(1), " numbers for each sample, and '",
                        targets_, "' ", plan_.output[0]));
      }
      add_validation(held_out);
    }
  }

  // The windows of a series that has the context before its first step to predict.
  DatasetPtr windows_of(const vernier::Source& source, const torch::Tensor& series) const {
    const auto steps = series.size(0);
    const auto outputs = series.index_select(1, torch::tensor(outputs_, torch::kInt64));
    const auto seen = series.narrow(0, 0, steps - horizon_).unfold(0, context_, stride_);  // views, as next
    const auto next = outputs.narrow(0, context_, steps - context_).unfold(0, horizon_, stride_);
    return vernier::dataset_of({seen.transpose(1, 2), next.transpose(1, 2)}, source.name,
                               c10::str(context_, " and ", horizon_, " steps, ", vernier::fingerprint_of({series})));
  }

  void build_forecast() {
    const auto source = read_inputs_of(data_);
    const auto& series = source.tensor;
    const auto steps = series.size(0), window = context_ + horizon_;
    plan_.steps = context_, plan_.features = series.size(1);
    name_outputs(source);
    const bool is_split = held_out_data_.empty() && share_ > 0;
    const auto held_out = is_split ? static_cast<std::int64_t>(std::ceil(static_cast<double>(steps) * share_)) : 0;
    const auto training = series.narrow(0, 0, steps - held_out);
    if (training.size(0) < window || (is_split && held_out < horizon_)) {
      refuse(c10::str("'", data_, "' has ", training.size(0), " steps to train on and ", held_out,
                      " held out; a window has ", context_, " and ", horizon_));
    }
    set_input_norm(training);
    const auto outputs = torch::tensor(outputs_, torch::kInt64);
    output_mean_ = input_mean_.index_select(0, outputs);
    output_std_ = input_std_.index_select(0, outputs);
    plan_.output = {horizon_, std::ssize(outputs_)};
    set_training(windows_of(source, training));
    if (is_split)
      add_validation(windows_of(source, series.narrow(0, steps - held_out - context_, held_out + context_)));
    if (!held_out_data_.empty()) {
      const auto other = read_inputs_of(held_out_data_);
      require_steps(other, window);
      require_shape(held_out_data_, other.tensor.unfold(0, context_, stride_).transpose(1, 2));
      add_validation(windows_of(other, other.tensor));
    }
  }

  void name_outputs(const vernier::Source& source) {
    if (outputs_.empty()) {
      outputs_.resize(static_cast<std::size_t>(plan_.features));
      std::iota(outputs_.begin(), outputs_.end(), 0);
    }
    for (const auto output : outputs_) {
      if (output >= plan_.features) {
        refuse(c10::str("outputs has ", output, ", and '", data_, "' has ", plan_.features, " features, from 0"));
      }
      const auto i = static_cast<std::size_t>(output);
      names_.push_back(i < source.columns.size() ? source.columns[i]
                       : plan_.features == 1     ? "forecast"
                                                 : c10::str("forecast_of_", output));
    }
  }

  // values: [all steps, features].
  void set_input_norm(const torch::Tensor& values) {
    input_mean_ = values.mean(0);
    input_std_ = without_zeros(values.std(0, /*unbiased=*/false));
  }

  std::string data_, kind_, targets_, held_out_data_, held_out_targets_;
  double share_;
  std::int64_t context_, horizon_, stride_;
  std::vector<std::int64_t> outputs_;

  Plan plan_;
  std::int64_t classes_ = 0;
  std::vector<std::string> words_;  // for the labels
  std::vector<std::string> names_;  // of outputs_
  torch::Tensor input_mean_, input_std_, output_mean_, output_std_;
};

}  // namespace

VERNIER_PLUGIN(Sequence, "sequence", "1.0.0")
