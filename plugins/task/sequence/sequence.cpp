// sequence: trains an LSTM, a GRU or a small transformer on sequences of numbers: it classifies them, predicts numbers
// of them, or forecasts the next values of a series.
//
// data                  required: a source (vernier/data/data_source.h), such as "x.npy", "x.npz:x", "x.csv:a,b"
// kind = "classification"  data: [samples, steps] or [samples, steps, features]; `targets`: labels [samples]
//                       "regression": the same; `targets`: numbers [samples] or [samples, numbers]
//                       "forecast": data: one series, [steps] or [steps, features], oldest first; no `targets`
// targets = ""          a source
// validation = "", validation_targets = ""  the held-out ones, in the same form
// validation_share = 0.1  share held out without validation: drawn from [run] seed; of a series the last part
// context = 32          "forecast": steps that it sees
// horizon = 1           "forecast": steps after them that it predicts
// stride = 1            "forecast": steps between the beginnings of two windows
// series = ""           "forecast": the column of a CSV file whose words tell several series apart, such as "shop";
//                       each window is in one of them, and the last part of each is held out
// level = "auto"        "forecast": what the network takes for zero. "training": the mean of the training part.
//                       "window": its window's last value, in units of the window's deviation, and it adds to the
//                       forecast that repeats the last season: it follows a trend to levels that no window had. "auto":
//                       "window" if that forecast leaves at most half of the variance of the training part
// outputs = []          "forecast": the features that it predicts, by number from 0; none: all
// model = "lstm"        or "gru", "transformer"
// width = 64, layers = 1, heads = 4, dropout = 0.0  heads: of the transformer; dropout: between layers or in blocks
// types = {}, missing = "refuse", separator = "", decimal = ".", thousands = "", encoding = "utf-8", header = true,
// missing_words = ["NA", "N/A", "NaN", "nan", "NULL", "null", "#N/A", "n/a", "NaT", "?"]
// skip_lines = 0        of CSV files, as of task/tabular; missing: "refuse", "zero" or "previous"
// batch_size = 32
// order = "shuffled", drop_last = false, workers = 1, prefetch = 2, fold = "", recompute = "none"  see
// vernier/data/supervised_task.h
//
// Inputs, and targets that are numbers, are normalized with mean and deviation of the training part. These are buffers
// of the model. Outputs are in the units of the data; the loss is the mean squared error in units of the deviation, or
// cross-entropy.
#include <ATen/ops/cross_entropy_loss.h>
#include <ATen/ops/where.h>
#include <vernier/data/csv.h>
#include <vernier/data/data_source.h>
#include <vernier/data/digits.h>
#include <vernier/data/predictor.h>
#include <vernier/data/supervised_task.h>
#include <vernier/data/trainer_program.h>
#include <vernier/draft/capture.h>
#include <vernier/json_text.h>
#include <vernier/sdk.h>

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>
#include <numeric>
#include <optional>
#include <tuple>

#include "../predicted.h"
#include "../units.h"
#include "networks.h"
#include "series.h"

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

class Sequence final : public vernier::SupervisedTask,
                       public vernier::Predictor,
                       public vernier::TrainerExportable,
                       public vernier::draft::Capturable {
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
        series_(
            options.get("series", "", "CSV: the column whose words tell several series apart; windows stay in one")),
        level_(options.choose("level", "auto", {"auto", "training", "window"},
                              "what a forecast takes for zero; auto: the window, where repeating a season does well")),
        outputs_(options.get("outputs", std::vector<std::int64_t>{}, "features that it predicts, from 0; none: all",
                             between(0, 1e6))) {
    for (const char* key : {"data", "targets", "validation", "validation_targets"})
      options.resumable(key);  // content counts, not path
    plan_.model = options.choose("model", "lstm", {"lstm", "gru", "transformer"}, "the network");
    plan_.width = options.get("width", 64, "of its layers", between(1, 65536));
    plan_.layers = options.get("layers", 1, "of the network", between(1, 1000));
    plan_.heads = options.get("heads", 4, "of the transformer's attention", between(1, 1000));
    plan_.dropout = options.get("dropout", 0.0, "between layers, or in each block of the transformer", between(0, 0.9));
    plan_.has_classes = kind_ == "classification";
    form_ = vernier::csv_options(options, {"refuse", "zero", "previous"});
    form_.fill_remedy = R"(set missing = "zero" or "previous")";
    if (!series_.empty()) form_.leave_out = {series_};
    refuse_contradictions(options);
    is_share_given_ = share_ > 0 && options.given("validation_share");
  }

  void build(Run& run) override {
    if (is_trained()) recall();
    if (!is_trained() && is_share_given_ && !held_out_data_.empty())
      refuse("`validation_share` has no effect with `validation`; leave one of them out");
    if (!is_trained() && kind_ != "forecast" && held_out_data_.empty() != held_out_targets_.empty()) {
      refuse("`validation` and `validation_targets` are given both or not at all");
    }
    if (reads_data() && kind_ == "forecast") build_forecast();
    if (reads_data() && kind_ != "forecast") build_whole(run.seed);
    if (!is_trained()) set_learned(facts());
    const auto network =
        make_network(plan_, [this](const Part& part, const torch::Tensor& x) { return recomputed(part, x); });
    network->set_norm(input_mean_, input_std_, output_mean_, output_std_);
    network_ = network.get();
    constexpr bool keeps_inputs = true;
    set_model(
        network, [this](const Batch& batch) { return network_->forward(batch.tensors[0]); }, keeps_inputs);
    if (plan_.has_classes) {
      set_loss([](const auto& output, const auto& target) { return at::cross_entropy_loss(output, target); }, 1,
               what());
      add_metric(vernier::accuracy());
      return;
    }
    const auto loss = [network = network.get()](const torch::Tensor& output, const torch::Tensor& target) {
      return ((output - target) / network->output_std()).square().mean();
    };
    set_loss(loss, 1, what());
    for (auto& metric : vernier::metrics_by_name({}, targets())) add_metric(std::move(metric));
  }

  // A source of the same form as `data`, or a file with the same part in it. A series gives all windows, also the last
  // one, which nothing follows.
  DatasetPtr read_inputs(const std::string& path) override {
    if (kind_ == "forecast") {
      const auto series = read_series(vernier::same_part(data_, path));
      series_names_ = series.names();
      require_features(series);
      warn_of_short(series, context_);
      return series.inputs({.context = context_, .stride = stride_});
    }
    const auto source = read_inputs_of(vernier::same_part(data_, path));
    require_shape(source.name, source.tensor);
    return vernier::dataset_of({source.tensor}, source.name, vernier::fingerprint_of({source.tensor}), source.where);
  }

  std::vector<Column> predict(const Batch& batch) override {
    const auto numbers = forward(batch);
    if (plan_.has_classes) return columns_of(targets(), numbers, batch.samples);
    const auto output = in_units(numbers, network_->output_mean(), network_->output_std());
    if (kind_ == "regression") return {{"value", output}};
    std::vector<Column> columns;  // the series, the first step that is predicted, from 0, and the predicted ones
    if (batch.tensors.size() > 2) columns.push_back({series_, batch.tensors[2], series_names_});
    if (batch.tensors.size() > 1) columns.push_back({step_column(), batch.tensors[1]});
    for (std::size_t i = 0; i < outputs_.size(); ++i) {
      columns.push_back({names_.at(i), output.select(2, static_cast<std::int64_t>(i))});
    }
    return columns;
  }

  std::vector<std::string> classes() const override { return vernier::names_of(classes_); }

  std::string python_model() const override { return python_source(plan_); }

  vernier::TrainerPlan trainer_plan() const override {
    if (plan_.model != "lstm") {
      refuse("of task/sequence, LSTMs alone can be exported as a trainer; this run has model = \"" + plan_.model +
             "\"");
    }
    if (!series_.empty()) refuse("a trainer reads one series, and this run has `series` = \"" + series_ + "\"");
    const bool is_forecast = kind_ == "forecast";
    return {.classes = vernier::names_of(classes_),
            .outputs = c10::multiply_integers(plan_.output),
            .numbers = plan_.features,
            .steps = plan_.steps,
            .lstm_layers = plan_.layers,
            .lstm_width = plan_.width,
            .dropout = plan_.dropout,
            .horizon = is_forecast ? horizon_ : 0,
            .stride = stride_,
            .season = plan_.season,
            .features = is_forecast ? outputs_ : std::vector<std::int64_t>{},
            .batch_size = batch_size(),
            .mean = "input_mean",
            .deviation = "input_std",
            .target_mean = "output_mean",
            .target_deviation = "output_std",
            .last_weight = "weight",
            .last_bias = "bias",
            .output = plan_.has_classes ? "class"
                      : is_forecast     ? step_column()
                                        : "value",
            .feature_names = names_};
  }

  std::string description() const override {
    nlohmann::ordered_json all = {{"task", "sequence"}, {"kind", kind_}};
    all["input"] = {{"dtype", "float64"}, {"shape", {"samples", plan_.steps, plan_.features}}};
    if (!columns_.empty()) all["input"][std::ssize(columns_) == plan_.features ? "features" : "columns"] = columns_;
    all["input"]["scaled"] = "by the model";
    auto& output = all["output"];
    output["shape"] = {"samples"};
    for (const auto size : plan_.output) output["shape"].push_back(size);
    if (plan_.has_classes) {
      output["is"] = "logits";
      output["classes"] = names_of(classes_);
    } else if (kind_ == "forecast") {
      output["is"] = c10::str("the ", horizon_, " steps after the input, in the units of the data");
      output["features"] = names_;
    } else {
      output["is"] = "numbers, in the units of the targets";
    }
    return vernier::json_text(all, 2);
  }

 private:
  // The column of predictions with the first step that is predicted.
  std::string step_column() const { return std::ranges::count(names_, "step") > 0 ? "first_step" : "step"; }

  vernier::Targets what() const {
    using Kind = vernier::Targets::Kind;
    return {plan_.has_classes ? Kind::classes : Kind::numbers, plan_.has_classes ? classes_.count : 0, classes_.words};
  }

  // The facts that the model needs besides its weights, which include means and deviations.
  vernier::State facts() const {
    auto state = data_facts_;
    vernier::put_words(state, "columns", columns_);
    vernier::put_words(state, "names", names_);
    vernier::put_words(state, "words", classes_.words);
    state.put("classes", classes_.count);
    state.put("steps", plan_.steps);
    state.put("features", plan_.features);
    state.put("season", plan_.season);
    state.put("outputs", torch::tensor(outputs_, torch::kInt64));
    state.put("output", torch::tensor(plan_.output, torch::kInt64));
    return state;
  }

  void recall() {
    const auto& facts = learned();
    columns_ = vernier::words_of(facts, "columns");
    names_ = vernier::words_of(facts, "names");
    classes_ = {facts.integer("classes"), vernier::words_of(facts, "words")};
    plan_.steps = facts.integer("steps"), plan_.features = facts.integer("features");
    const auto numbers = [&](const char* name) {
      const auto tensor = facts.tensor(name).to(torch::kCPU).contiguous();
      return std::vector<std::int64_t>(tensor.const_data_ptr<std::int64_t>(),
                                       tensor.const_data_ptr<std::int64_t>() + tensor.numel());
    };
    plan_.outputs = outputs_ = numbers("outputs"), plan_.output = numbers("output");
    plan_.season = facts.integer("season");
    input_mean_ = torch::zeros({plan_.features}), input_std_ = torch::ones({plan_.features});  // weights follow
    if (!plan_.has_classes) output_mean_ = torch::zeros({plan_.output.back()}), output_std_ = output_mean_ + 1;
  }

  void refuse_contradictions(const Options& options) const {
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
    for (const auto output : outputs_) {
      if (std::ranges::count(outputs_, output) > 1) options.refuse("outputs", c10::str("has ", output, " twice"));
    }
    if (!series_.empty() && form_.fill == vernier::CsvFill::previous) {
      options.refuse("missing", "is \"previous\", and the row before may be of another series; set \"zero\"");
    }
    for (const char* key : {"context", "horizon", "stride", "series", "level", "outputs"}) {
      if (kind_ != "forecast" && options.given(key)) options.refuse(key, "is for kind = \"forecast\"");
    }
  }

  // [samples, steps, features], or of a series [steps, features].
  vernier::Source read_inputs_of(const std::string& name) const {
    auto source = vernier::read_source(name, {}, columns_, form_);
    const auto dimensions = kind_ == "forecast" ? 2 : 3;
    if (!source.words.empty()) refuse("'" + name + "' has words; sequences are numbers");
    if (source.tensor.dim() == dimensions - 1) source.tensor = source.tensor.unsqueeze(-1);
    if (source.tensor.dim() != dimensions || source.tensor.numel() == 0) {
      refuse(c10::str("'", name, "' has the shape ", source.tensor.sizes(), "; ",
                      kind_ == "forecast" ? "a series has [steps] or [steps, features]"
                                          : "sequences have [samples, steps] or [samples, steps, features]"));
    }
    source.tensor = vernier::as_floats(source.tensor);
    vernier::require_finite(source);
    return source;
  }

  // Checks the shape of sequences [samples, steps, features] that are predicted or held out.
  void require_shape(const std::string& name, const torch::Tensor& x) const {
    if (x.size(1) == plan_.steps && x.size(2) == plan_.features) return;
    refuse(c10::str("'", name, "' has ", x.size(1), " steps of ", x.size(2), " features; those to train on have ",
                    plan_.steps, " of ", plan_.features));
  }

  // Whole sequences and their targets.
  DatasetPtr read_whole(const std::string& data, const std::string& targets) {
    const auto inputs = read_inputs_of(data);
    if (!is_trained()) columns_ = inputs.columns;
    auto target = vernier::read_source(targets, classes_.words, {}, form_);
    if (target.tensor.size(0) != inputs.tensor.size(0)) {
      refuse(c10::str("'", data, "' has ", inputs.tensor.size(0), " sequences, and '", targets, "' ",
                      target.tensor.size(0), " targets"));
    }
    if (plan_.has_classes) {
      const bool is_first = classes_.count == 0;
      target.tensor = vernier::codes_of(target, classes_, "set kind = \"regression\"");
      if (is_first) info(vernier::counted(classes_, target.tensor));
      if (const auto alike = vernier::alike_words(classes_.words); is_first && !alike.empty()) {
        warn("'", targets, "' has ", alike);
      }
      if (classes_.count < 2) refuse("'" + targets + "' has a single class; there is nothing to tell apart");
    } else {
      if (!target.words.empty()) refuse("'" + targets + "' has words; set kind = \"classification\"");
      if (target.tensor.dim() == 1) target.tensor = target.tensor.unsqueeze(1);
      if (target.tensor.dim() != 2) {
        refuse(c10::str("'", targets, "' has the shape ", target.tensor.sizes(),
                        "; numbers have [samples] or "
                        "[samples, numbers]"));
      }
      target.tensor = vernier::as_floats(target.tensor);
      vernier::require_finite(target);
    }
    return vernier::dataset_of({inputs.tensor, target.tensor}, data,
                               vernier::fingerprint_of({inputs.tensor, target.tensor}), inputs.where);
  }

  vernier::NamedData named() const {
    return {{{data_}, targets_}, {{held_out_data_}, held_out_targets_}, "validation", "validation_targets"};
  }

  void build_whole(std::uint64_t seed) {
    DatasetPtr training, held_out;
    const auto read_all = [&](const vernier::NamedData::Files& files) {
      training = held_out = read_whole(files.names[0], files.targets);
      if (is_trained()) require_form(*training, files.names[0], files.targets);
      return std::vector{training->fingerprint()};
    };
    const auto hold_out = [&] {
      held_out.reset();
      if (share_ > 0) std::tie(training, held_out) = vernier::split(training, share_, seed);
      return held_out;
    };
    if (is_trained()) {
      named().read_again(learned(), read_all, hold_out);
    } else {
      const auto contents = read_all(named().training);
      vernier::warn_if_in_both(id(), {data_}, {held_out_data_});
      held_out = held_out_data_.empty() ? hold_out() : read_whole(held_out_data_, held_out_targets_);
      data_facts_ = named().facts(contents, held_out);
      if (training->size() == 0) refuse("'" + data_ + "' has no sequence left to train on; hold out less");
      learn_form(*training);
      if (held_out) require_form(*held_out, held_out_data_, held_out_targets_);
    }
    set_training(training);
    if (held_out) add_validation(held_out);
  }

  void learn_form(const vernier::Dataset& training) {
    const auto all = *training.get_batch(torch::arange(training.size()));
    plan_.steps = all[0].size(1), plan_.features = all[0].size(2);
    set_input_norm(all[0].flatten(0, 1));
    if (plan_.has_classes) {
      plan_.output = {classes_.count};
    } else {
      plan_.output = {all[1].size(1)};
      std::tie(output_mean_, output_std_) = norm_of(all[1], targets_, {});
    }
    learn_targets(vernier::target_facts(all[1], what()));
  }

  void require_form(const vernier::Dataset& other, const std::string& data, const std::string& targets) const {
    const auto sample = (*other.get_batch(torch::zeros({1}, torch::kInt64)));
    require_shape(data, sample[0]);
    if (plan_.has_classes || sample[1].size(1) == plan_.output[0]) return;
    refuse(c10::str("'", targets, "' has ", sample[1].size(1),
                    " numbers for each sample, and the model was trained on ", plan_.output[0]));
  }

  Series read_series(const std::string& name) const {
    if (series_.empty()) return Series(read_inputs_of(name));
    auto form = form_;
    form.leave_out.clear();
    form.types[series_] = vernier::CsvType::category;
    const auto names = vernier::read_source(vernier::file_of(name) + ":" + series_, {}, {}, form);
    return {read_inputs_of(name), names};
  }

  // Warns of series that have no window of so many steps.
  void warn_of_short(const Series& series, std::int64_t steps) const {
    std::vector<std::string> names;
    for (std::size_t i = 0; i < series.names().size(); ++i) {
      const auto& [begin, end] = series.all()[i];
      if (end - begin < steps) names.push_back(series.names()[i]);
    }
    if (names.empty()) return;
    warn("'", series.name(), "': ", names.size(), " of ", series.names().size(),
         " series are shorter than a window, and left out: ", vernier::shortened(vernier::some_of(names)));
  }

  void build_forecast() {
    if (is_trained()) return read_forecast();
    const auto series = read_series(data_);
    plan_.steps = context_, plan_.features = series.values().size(1);
    columns_ = series.columns();
    name_outputs(series);
    const auto [training, held_out] = series.divide(held_out_data_.empty() ? share_ : 0, window());
    learn_series(series, training);
    vernier::warn_if_in_both(id(), {data_}, {held_out_data_});
    set_training(series.windows(training, window(), outputs_));
    auto windows = held_out.empty() ? DatasetPtr() : series.windows(held_out, window(), outputs_);
    if (!held_out_data_.empty()) windows = all_windows(read_series(held_out_data_));
    data_facts_ = named().facts({series.fingerprint()}, windows);
    if (windows) add_validation(windows);
  }

  void read_forecast() {
    std::optional<Series> series;
    DatasetPtr windows;
    const auto read_all = [&](const vernier::NamedData::Files& files) {
      series.emplace(read_series(files.names[0]));
      set_training(windows = all_windows(*series));
      return std::vector{series->fingerprint()};
    };
    named().read_again(learned(), read_all, [&] {
      const auto held_out = series->divide(share_, window()).second;
      return windows = held_out.empty() ? nullptr : series->windows(held_out, window(), outputs_);
    });
    if (windows) add_validation(windows);
  }

  void learn_series(const Series& series, const std::vector<Steps>& training) {
    const auto count = std::ssize(series.names());
    if (count > 0) {
      info(count, " series in '", series_, "': ", vernier::shortened(vernier::some_of(series.names())),
           training.size() < series.all().size()
               ? c10::str("; too short for a window: ", series.all().size() - training.size())
               : "");
    }
    set_input_norm(series.values_in(training));
    const auto outputs = torch::tensor(outputs_, torch::kInt64);
    output_mean_ = input_mean_.index_select(0, outputs);
    output_std_ = input_std_.index_select(0, outputs);
    plan_.output = {horizon_, std::ssize(outputs_)};
    const auto longest = std::ranges::max(training, {}, [](const Steps& part) { return part.second - part.first; });
    const auto facts = vernier::forecast_facts(series.values_in({longest}), outputs_, context_, horizon_);
    learn_targets(facts);
    constexpr double little = 0.5;  // a share of the variance, of which the mean leaves all
    if (level_ == "training" || (level_ == "auto" && !(facts.real("error") <= little))) return;
    plan_.season = facts.integer("season"), plan_.outputs = outputs_;
    info("the network corrects the forecast that repeats the last ",
         plan_.season == 1 ? "value" : c10::str(plan_.season, " steps"), " (level = \"window\")");
  }

  Window window() const { return {context_, horizon_, stride_}; }

  // Returns all windows of a series that was not trained on.
  DatasetPtr all_windows(const Series& series) const {
    require_features(series);
    warn_of_short(series, context_ + horizon_);
    return series.windows(series.all(), window(), outputs_);
  }

  void require_features(const Series& series) const {
    if (series.values().size(1) == plan_.features) return;
    refuse(c10::str("'", series.name(), "' has ", series.values().size(1),
                    " numbers in a step; the series to train on ", "has ", plan_.features));
  }

  void name_outputs(const Series& series) {
    if (outputs_.empty()) {
      outputs_.resize(static_cast<std::size_t>(plan_.features));
      std::iota(outputs_.begin(), outputs_.end(), 0);
    }
    for (const auto output : outputs_) {
      if (output >= plan_.features) {
        refuse(c10::str("outputs has ", output, ", and '", data_, "' has ", plan_.features, " features, from 0"));
      }
      const auto i = static_cast<std::size_t>(output);
      names_.push_back(i < series.columns().size() ? series.columns()[i]
                       : plan_.features == 1       ? "forecast"
                                                   : c10::str("forecast_of_", output));
    }
  }

  // values: [all steps, features].
  void set_input_norm(const torch::Tensor& values) {
    std::tie(input_mean_, input_std_) = norm_of(values, data_, columns_);
  }

  // Mean and deviation of each column in float64. The mean is taken off in float64 too, so a warning is about columns
  // with numbers far apart.
  std::pair<torch::Tensor, torch::Tensor> norm_of(const torch::Tensor& values, const std::string& name,
                                                  const std::vector<std::string>& columns) const {
    const auto lost = vernier::lost_digits(values, /*is_centred=*/true, columns);
    if (!lost.empty()) warn("'", name, "': ", lost, " once they are normalized; look for numbers far from all others");
    const auto wide = values.to(torch::kFloat64);
    return {wide.mean(0), without_zeros(wide.std(0, /*unbiased=*/false))};
  }

  std::string data_, kind_, targets_, held_out_data_, held_out_targets_;
  double share_;
  bool is_share_given_;
  std::int64_t context_, horizon_, stride_;
  std::string series_, level_;
  std::vector<std::int64_t> outputs_;

  Plan plan_;
  SequenceNetwork* network_ = nullptr;  // the model
  vernier::CsvOptions form_;
  vernier::Classes classes_;
  std::vector<std::string> columns_;       // feature columns of a CSV file
  std::vector<std::string> names_;         // names of the outputs
  std::vector<std::string> series_names_;  // series in the file that is predicted
  vernier::State data_facts_;              // facts of NamedData
  torch::Tensor input_mean_, input_std_, output_mean_, output_std_;
};

}  // namespace

VERNIER_PLUGIN(Sequence, "sequence", "1.0.0")
