// text: trains a network on texts of a CSV file or of JSON Lines, to predict a class or a number of each, or to rank
// them. It is a transformer encoder, or a published model with a new head.
//
// data                  required: CSV file, or JSON Lines (.jsonl) with an object in each line
// text = ["text"]       the columns or fields with the text; several are joined by a line end
// target = "label"      the column or field that is predicted
// kind = "auto"         classification | regression | ranking | auto: words and whole numbers of few kinds are classes
// group = ""            ranking: the column or field whose value is the same for texts that are compared: a query
// validation = ""       file with the same columns that is held out
// validation_share = 0.1   of the texts that is held out, where `validation` is not given; 0: none
// split = "auto"        how they are drawn: random; stratified, by class; last, those at the end; auto: stratified for
//                       classes, else random. Of a ranking whole groups are drawn
// folder = ""           of a published model, as of task/gpt and task/llama, which reads the texts
// tokenizer = ""        folder of a tokenizer (docs/guides/tokenizer.md); "": that of `folder`, or byte-level BPE is
//                       learned of the training texts
// vocabulary = 4000     tokens of a learned tokenizer, at most; a pair that occurs once is not merged
// length = 128          tokens of a text that are read; the rest is left out. At most as many as `folder` has positions
// width = 64, layers = 2, heads = 4  of the encoder
// dropout = 0.1         of the encoder; with `folder`: in place of those of config.json, if given
// class_weights = "none"  classification: or "balanced": in the loss all classes weigh the same in sum
// metrics = []          names; []: accuracy and f1, and auc for two classes; mae, rmse and r2; or ndcg_10 and mrr
// types = {}, missing = "refuse", separator = "", decimal = ".", thousands = "", encoding = "utf-8", header = true,
// missing_words = ["NA", "N/A", "NaN", "nan", "NULL", "null", "#N/A", "n/a", "NaT", "?"]
// skip_lines = 0        of CSV files, as of task/tabular; missing: "refuse" or "drop", whose rows are not used
// batch_size = 32, order = "shuffled", drop_last = false, workers = 1, prefetch = 2, fold = "", recompute = "none"
//                       see docs/guides/data.md; recompute computes each block again in backward
//
// The encoder reads a token for the beginning of a text and those of the tokenizer, and the mean of its outputs over
// them is classified. A published model reads what its tokenizer makes of a text, and the output for the last token is
// classified. A ranking gives each text a score, and a batch has `batch_size` groups. All that is learned of data is
// learned of the training texts: the tokenizer, the longest text, and mean and deviation of targets that are numbers.
// Checkpoints and exports have the tokenizer in them. The loss of a regression is the mean squared error over the
// variance of the training targets, so 1 is as good as their mean.
#include <ATen/ops/_unique.h>
#include <ATen/ops/constant_pad_nd.h>
#include <ATen/ops/cross_entropy_loss.h>
#include <ATen/ops/mse_loss.h>
#include <c10/util/StringUtil.h>
#include <torch/types.h>
#include <vernier/data/csv.h>
#include <vernier/data/data_source.h>
#include <vernier/data/predictor.h>
#include <vernier/data/split.h>
#include <vernier/data/supervised_task.h>
#include <vernier/draft/capture.h>
#include <vernier/json_in.h>
#include <vernier/published_model.h>
#include <vernier/sdk.h>
#include <vernier/text/tokenizer.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <optional>
#include <utility>

#include "../language/model_files.h"
#include "../predicted.h"
#include "../units.h"
#include "network.h"
#include "published.h"
#include "ranking.h"
#include "reading.h"
#include "targets.h"
#include "tokens.h"

namespace {

using text::Kind;
using vernier::between;
using vernier::DatasetPtr;
using vernier::Options;
using vernier::Run;
using vernier::SplitRows;
using vernier::State;

// Samples of a file.
struct Data {
  DatasetPtr dataset;     // texts, or a ranking's groups
  torch::Tensor targets;  // target of each text: the code of a class, or a number
  torch::Tensor groups;   // ranking: the group of each text
};

class Text : public vernier::SupervisedTask, public vernier::Predictor, public vernier::draft::Capturable {
 public:
  explicit Text(Options& options)
      : SupervisedTask(options),
        data_(options.require<std::string>(
            "data", "CSV file, several as in x-*.csv, or JSON Lines (.jsonl) with an object in each line")),
        validation_(options.get("validation", "", "file with the same columns that is held out")),
        share_(options.get("validation_share", 0.1, "of the texts that is held out, without `validation`; 0: none",
                           between(0, 0.9))),
        split_(options.choose("split", "auto", {"auto", "random", "stratified", "last"}, "how texts are held out")),
        folder_(options.get("folder", "", "of a published model that reads the texts, instead of an encoder")),
        tokenizer_folder_(options.get("tokenizer", "",
                                      "folder of a tokenizer; empty: that of `folder`, or it is learned of the texts")),
        vocabulary_(options.get("vocabulary", 4000, "tokens of a learned tokenizer, at most", between(256, 1e6))),
        length_(options.get("length", 128, "tokens of a text that are read", between(2, 65536))),
        class_weights_(options.choose("class_weights", "none", {"none", "balanced"}, "classification: in the loss")),
        metrics_(options.get("metrics", std::vector<std::string>{}, "names; []: those usual for the kind")) {
    for (const char* key : {"data", "validation", "folder", "tokenizer"})
      options.resumable(key);  // content counts, not path
    has_length_ = options.given("length");
    form_.fields = options.get("text", std::vector<std::string>{"text"}, "columns or fields with the text");
    form_.target = options.get("target", "label", "the column or field that is predicted");
    form_.kind =
        options.choose("kind", "auto", {"auto", "classification", "regression", "ranking"}, "what is predicted");
    form_.group = options.get("group", "", "ranking: the column that is the same for texts that are compared");
    form_.csv = vernier::csv_options(options, {"refuse", "drop"});
    form_.csv.fill_remedy = R"(set missing = "drop")";
    read_shape(options);
    refuse_contradictions(options);
    for (const char* key : {"split", "validation_share"}) {
      if (!validation_.empty() && share_ > 0 && options.given(key)) idle_ = key;
    }
  }

  void build(Run& run) override {
    if (is_trained()) recall();
    Data data;
    SplitRows split;
    if (!is_trained()) {
      learn(data, split, run.seed);
    } else if (reads_data()) {
      read_again(data, split, run.seed);
    }
    if (kind_ != Kind::classification && class_weights_ != "none") {
      refuse("`class_weights` is for classes, and the target is a number");
    }
    shape_.outputs = kind_ == Kind::classification ? classes_.count : 1;
    shape_.has_units = kind_ == Kind::regression;
    network_ = make_network(run.seed);
    if (!is_trained() && shape_.has_units) network_->standardise(data.targets.index_select(0, split.training));
    set_model(network_);
    choose_loss();
    for (auto& metric : vernier::metrics_by_name(metrics_, targets())) add_metric(std::move(metric));
    if (!data.dataset) return;
    set_training(part_of(data, split.training));
    if (!is_trained()) {
      learn_targets(vernier::target_facts(data.targets.index_select(0, split.training), targets()));
    }
    if (split.held_out.numel() > 0) {
      add_validation(part_of(data, split.held_out));
    } else if (!is_trained() && !validation_.empty()) {
      add_validation(read(validation_).dataset);
    }
  }

  DatasetPtr read_inputs(const std::string& path) override {
    const auto texts = text::read_texts(path, form_, false);
    return text::text_dataset(samples_of(path, texts, {}));
  }

  // A batch is as wide as its longest text and its largest group. The others are filled up, as group_dataset() does.
  vernier::Batch concatenated(const std::vector<vernier::Batch>& batches) const override {
    auto filled = batches;
    for (std::size_t i = 0; i < batches.front().tensors.size(); ++i) {
      for (std::int64_t dimension = 1; dimension < batches.front().tensors[i].dim(); ++dimension) {
        std::int64_t most = 0;
        for (const auto& batch : batches) most = std::max(most, batch.tensors.at(i).size(dimension));
        for (auto& batch : filled) {
          auto& tensor = batch.tensors[i];
          std::vector<std::int64_t> behind(static_cast<std::size_t>(2 * (tensor.dim() - dimension)));
          behind.back() = most - tensor.size(dimension);
          const auto fill = tensor.is_floating_point() ? NAN : static_cast<double>(code_.padding);
          if (behind.back() > 0) tensor = at::constant_pad_nd(tensor, behind, fill);
        }
      }
    }
    return SupervisedTask::concatenated(filled);
  }

  // One text of each group of a ranking: that is what the model is used on.
  vernier::Batch example(std::int64_t samples) const override {
    auto batch = SupervisedTask::example(samples);
    if (batch.tensors.at(0).dim() == 3) batch.tensors[0] = batch.tensors[0].select(1, 0);
    return batch;
  }

  std::vector<Column> predict(const vernier::Batch& batch) override {
    const auto output = forward(batch);
    if (kind_ == Kind::classification) return columns_of(targets(), output, batch.samples, form_.target);
    if (kind_ == Kind::ranking) return {{"score", output}};
    return {{form_.target, in_units(output, network_->target_mean, network_->target_deviation)}};
  }

  std::vector<std::string> classes() const override { return vernier::names_of(classes_); }

  std::string description() const override {
    auto facts = this->facts();
    facts["input"] = {{"dtype", "int64"}, {"shape", {"samples", shape_.length}}};
    facts["input"]["tokens"] = code_.describe();
    facts["output"] = kind_ == Kind::classification ? "logits of the classes"
                      : kind_ == Kind::ranking      ? "numbers, larger for texts that come first"
                                                    : "numbers, in the units of the target";
    return vernier::json_text(facts, 2);
  }

  std::string python_model() const override {
    return python_source(shape_, vernier::json_text(facts(), -1), language::text_of(files_, "tokenizer.json"));
  }

 protected:
  [[noreturn]] void refuse(const std::string& reason) const { vernier::refuse("'" + data_ + "': " + reason); }

  void read_shape(Options& options) {
    shape_.width = options.get("width", shape_.width, "of the encoder", between(1, 65536));
    shape_.layers = options.get("layers", shape_.layers, "blocks of the encoder", between(1, 1000));
    shape_.heads = options.get("heads", shape_.heads, "attention heads of a block", between(1, 1000));
    shape_.dropout = options.get("dropout", 0.1, "after the embedding, and in each block", between(0, 0.9));
    folder_dropout_ = options.given("dropout") ? shape_.dropout : -1;
    if (shape_.width % shape_.heads != 0) {
      options.refuse("heads", c10::str("does not divide a width of ", shape_.width));
    }
  }

  void refuse_contradictions(const Options& options) const {
    if (form_.fields.empty()) options.refuse("text", "names no column");
    if (form_.target.empty()) options.refuse("target", "is empty; name a column");
    for (const auto& field : form_.fields) {
      if (std::ranges::count(form_.fields, field) > 1) options.refuse("text", "has '" + field + "' twice");
    }
    if (std::ranges::count(form_.fields, form_.target) > 0) {
      options.refuse("target", "is a column of `text` too; name another one");
    }
    if (!tokenizer_folder_.empty() && options.given("vocabulary")) {
      options.refuse("vocabulary", "is for a tokenizer that is learned; leave it out");
    }
    for (const char* key : {"width", "layers", "heads", "vocabulary"}) {
      if (!folder_.empty() && options.given(key)) {
        options.refuse(key, "is for an encoder of your own, and `folder` names a model; leave one of them out");
      }
    }
    if (form_.group.empty() != (form_.kind != "ranking")) {
      options.refuse("group", "and kind = \"ranking\" are given both or not at all");
    }
    if (form_.group == form_.target && !form_.group.empty())
      options.refuse("group", "is the target; name another column");
    if (options.given("split") && share_ == 0) {
      options.refuse("split", "has no effect with validation_share = 0; leave one of them out");
    }
    if (data_.empty() || !text::is_json_lines(data_)) return;
    for (const char* key : {"types", "missing", "missing_words", "separator", "decimal", "thousands", "encoding",
                            "header", "skip_lines"}) {
      if (options.given(key)) options.refuse(key, "is for CSV files, and `data` is JSON Lines; leave it out");
    }
  }

  // Returns what the model needs besides its weights and its tokenizer.
  nlohmann::ordered_json facts() const {
    nlohmann::ordered_json facts = {{"task", "text"}, {"kind", text::name_of(kind_)}};
    facts["text"] = form_.fields;
    facts["target"] = form_.target;
    if (kind_ == Kind::ranking) facts["group"] = form_.group;
    if (kind_ == Kind::classification) facts["classes"] = vernier::names_of(classes_);
    if (kind_ == Kind::classification) facts["texts_of_classes"] = counts_;
    facts["length"] = shape_.length;
    facts["tokens"] = shape_.tokens;
    facts["data"] = fingerprint_;
    return facts;
  }

  void recall() {
    const auto facts = vernier::json_in<nlohmann::ordered_json>(learned().text("texts"));
    const auto target = facts.at("target").get<std::string>(), kind = facts.at("kind").get<std::string>();
    if (form_.target != target) {
      refuse("target = \"" + form_.target + "\", and the trained model predicts '" + target + "'");
    }
    if (form_.kind != "auto" && form_.kind != kind) {
      refuse("kind = \"" + form_.kind + "\", and the trained model is of a " + kind);
    }
    form_.kind = kind;
    kind_ = text::kind_of(kind);
    if (kind_ == Kind::classification) {
      const auto names = facts.at("classes").get<std::vector<std::string>>();
      classes_ = {std::ssize(names), names};
      counts_ = facts.at("texts_of_classes").get<std::vector<std::int64_t>>();
    }
    shape_.length = facts.at("length"), shape_.tokens = facts.at("tokens");
    fingerprint_ = facts.at("data");
    files_ = learned().part(learned().has("tokenizer/tokenizer.json") ? "tokenizer" : "given");
    const language::ModelFolder kept(files_);
    open(kept.path(), kept.path());
  }

  // Opens the tokenizer, and the model if there is one; errors name the folders.
  void open(const std::string& model, const std::string& tokenizer) {
    tokenizer_ = vernier::open_tokenizer(tokenizer);
    if (folder_.empty()) return;
    published_.emplace(model);
    if (!has_length_ && published_->longest() > 0) length_ = std::min(length_, published_->longest());
    code_ = text::published_code(*tokenizer_);
  }

  void open_given(const std::vector<std::string>& training) {
    const auto tokenizer = tokenizer_folder_.empty() ? folder_ : tokenizer_folder_;
    files_ = tokenizer.empty() ? text::learned_tokenizer(training, vocabulary_)
                               : language::read_model_files(folder_.empty() ? tokenizer : folder_, tokenizer);
    if (!tokenizer.empty()) return open(folder_, tokenizer);
    const language::ModelFolder learned(files_);
    open("", learned.path());
  }

  // Codes of the classes, or numbers; for the first file it decides which.
  torch::Tensor targets_of(const vernier::Source& source) {
    if (form_.kind == "auto") {
      guessed_classes_ = source.words.empty() && vernier::class_numbers(source.tensor).defined();
      kind_ = !source.words.empty() || guessed_classes_ ? Kind::classification : Kind::regression;
    } else {
      kind_ = text::kind_of(form_.kind);
    }
    if (kind_ == Kind::classification) return vernier::codes_of(source, classes_, "set kind = \"regression\"");
    if (!source.words.empty()) vernier::refuse("'" + source.name + "' has words; set kind = \"classification\"");
    vernier::require_finite(source);
    if (kind_ == Kind::ranking && source.tensor.min().item<double>() < 0) {
      vernier::refuse("'" + source.name + "': the target of a ranking is a relevance, and some are below 0");
    }
    return source.tensor.to(torch::kFloat64);
  }

  // The texts to train on and those held out.
  SplitRows divide(const Data& data, std::uint64_t seed) const {
    const auto count = data.targets.size(0);
    if (!validation_.empty() || share_ == 0) return {torch::arange(count), torch::empty({0}, torch::kInt64)};
    return text::split_texts(kind_, data.targets, data.groups, split_, share_, seed);
  }

  // Reads the data to train on and learns of the training texts.
  void learn(Data& data, SplitRows& split, std::uint64_t seed) {
    if (!idle_.empty()) vernier::refuse("`" + idle_ + "` has no effect with `validation`; leave one of them out");
    const auto texts = text::read_texts(data_, form_, true);
    data.targets = targets_of(texts.target);
    data.groups = texts.group_numbers();
    split = divide(data, seed);
    check_targets(data, split);
    const auto training = texts.some(split.training);
    open_given(training);
    const auto found = text::encode(*tokenizer_, code_, training, length_, true);
    shape_.length = folder_.empty() ? found.tokens.size(1) : length_;  // a model has positions for what it never saw
    shortened_ = found.shortened;
    shape_.tokens = tokenizer_->vocabulary() + code_.first_id;
    data.dataset = dataset_of(data_, texts, data);
    fingerprint_ = data.dataset->fingerprint();
    report(data, found);
    vernier::warn_if_in_both(id(), {data_}, {validation_});
    auto learned = named().facts({fingerprint_}, part_of(data, split.held_out));
    learned.put("texts", vernier::json_text(facts(), -1));
    // A run is not resumed with other files that were given.
    learned.put(folder_.empty() && tokenizer_folder_.empty() ? "tokenizer" : "given", files_);
    set_learned(std::move(learned));
  }

  void check_targets(const Data& data, const SplitRows& split) {
    const auto training = data.targets.index_select(0, split.training);
    if (training.numel() == 0) refuse("no text is left to train on");
    if (share_ > 0 && validation_.empty() && split.held_out.numel() == 0) {
      refuse("no text can be held out; set validation_share = 0 or `validation`");
    }
    if (kind_ == Kind::ranking) return check_groups(training, data.groups.index_select(0, split.training));
    if (kind_ == Kind::regression) {
      if (training.min().equal(training.max())) refuse("the target is always the same; there is nothing to learn");
      return;
    }
    if (classes_.count < 2) refuse("the target has a single class; there is nothing to tell apart");
    const auto counts = training.bincount({}, classes_.count).contiguous();
    counts_.assign(counts.const_data_ptr<std::int64_t>(), counts.const_data_ptr<std::int64_t>() + classes_.count);
    const auto names = vernier::names_of(classes_);
    for (std::size_t i = 0; i < counts_.size(); ++i) {
      if (counts_[i] == 0) warn("'", data_, "': the class '", names[i], "' has no text to train on");
    }
  }

  // Called with the training texts.
  void check_groups(const torch::Tensor& targets, const torch::Tensor& groups) const {
    const auto numbers = std::get<1>(at::_unique(groups, /*sorted=*/true, /*return_inverse=*/true));
    const auto all = numbers.max().item<std::int64_t>() + 1, flat = text::groups_without_order(targets, numbers);
    if (flat == all) refuse("no group has texts with different targets, so there is no order to learn; see `group`");
    if (flat == 0) return;
    warn("'", data_, "': ", flat, " of ", all, " groups have the same target for all their texts and teach nothing");
  }

  void report(const Data& data, const text::Encoded& training) const {
    const auto& targets = data.targets;
    const auto range = c10::str(targets.min().item<double>(), " to ", targets.max().item<double>(), ")");
    const auto vocabulary = !folder_.empty()            ? ", with a new head on the model of '" + folder_ + "'"
                            : tokenizer_folder_.empty() ? ", learned of the training texts"
                                                        : ", of '" + tokenizer_folder_ + "'";
    info(kind_ == Kind::classification ? "classification of " + vernier::counted(classes_, targets)
         : kind_ == Kind::ranking ? c10::str("ranking by ", form_.target, " (", range, " in ", data.dataset->size(),
                                             " groups of ", form_.group)
                                  : c10::str("regression of ", form_.target, " (", range),
         guessed_classes_ ? ", since the target has whole numbers; for a regression set kind = \"regression\"" : "",
         "; ", targets.size(0), " texts of up to ", training.longest, " tokens; a vocabulary of ",
         tokenizer_->vocabulary(), vocabulary);
    const auto alike = kind_ == Kind::classification ? vernier::alike_words(vernier::names_of(classes_)) : "";
    if (!alike.empty()) warn("'", data_, "': column '", form_.target, "' has ", alike);
    if (training.shortened == 0) return;
    warn("'", data_, "': ", training.shortened, " training texts have more than ", length_,
         " tokens, and the rest of them is left out; raise `length`");
  }

  vernier::NamedData named() const { return {{{data_}, ""}, {{validation_}, ""}, "validation", ""}; }

  // Reads data with the facts of the training.
  void read_again(Data& data, SplitRows& split, std::uint64_t seed) {
    const auto read_all = [&](const vernier::NamedData::Files& files) {
      data = read(files.names[0]);
      const auto all = torch::arange(data.targets.size(0));
      split = {all, all};
      return std::vector{data.dataset->fingerprint()};
    };
    named().read_again(learned(), read_all, [&] {
      split = divide(data, seed);
      return part_of(data, split.held_out);
    });
  }

  // Another file than that to train on, with targets.
  Data read(const std::string& path) {
    const auto texts = text::read_texts(path, form_, true);
    Data data{.dataset = {}, .targets = targets_of(texts.target), .groups = texts.group_numbers()};
    data.dataset = dataset_of(path, texts, data);
    return data;
  }

  DatasetPtr dataset_of(const std::string& path, const text::Texts& texts, const Data& data) const {
    auto samples = samples_of(path, texts, data.targets);
    return data.groups.defined() ? text::group_dataset(std::move(samples), texts.groups)
                                 : text::text_dataset(std::move(samples));
  }

  text::Samples samples_of(const std::string& path, const text::Texts& texts, const torch::Tensor& targets) const {
    const auto encoded = text::encode(*tokenizer_, code_, texts.texts, shape_.length, false);
    if (encoded.empty >= 0)
      vernier::refuse(texts.where(encoded.empty) + ": the text is empty, and the model needs a token");
    if (encoded.shortened > 0 && (path != data_ || encoded.shortened > shortened_)) {
      info("'", path, "': of ", encoded.shortened, " texts no more than ", shape_.length, " tokens are read");
    }
    return {encoded.tokens, targets, code_.padding, texts.where};
  }

  static DatasetPtr part_of(const Data& data, const torch::Tensor& rows) {
    if (rows.numel() == data.targets.size(0)) return data.dataset;
    if (!data.groups.defined()) return vernier::subset(data.dataset, rows);
    return vernier::subset(data.dataset, std::get<0>(at::_unique(data.groups.index_select(0, rows))));
  }

  std::shared_ptr<text::Network> make_network(std::uint64_t seed) {
    const auto by_parts = [this](const auto& part, const auto& x) { return recomputed(part, x); };
    if (!published_) return std::make_shared<text::Encoder>(shape_, by_parts);
    const auto network = published_->make(shape_, folder_dropout_, seed, is_trained() ? "" : folder_);
    network->model().run_blocks_by(by_parts);
    return network;
  }

  void choose_loss() {
    const vernier::Targets are{text::target_kind(kind_), classes_.count, vernier::names_of(classes_)};
    if (kind_ == Kind::ranking) {
      set_loss(text::pair_loss, 1, are);
    } else if (kind_ == Kind::regression) {
      const auto loss = [net = network_.get()](const auto& output, const auto& numbers) {
        return at::mse_loss(output / net->target_deviation, numbers / net->target_deviation);
      };
      set_loss(loss, 1, are);
    } else if (class_weights_ == "none") {
      set_loss([](const auto& output, const auto& classes) { return at::cross_entropy_loss(output, classes); }, 1, are);
    } else {
      set_loss(vernier::balanced_cross_entropy(torch::tensor(counts_)), 1, are);
    }
  }

  std::string data_, validation_;
  double share_;
  std::string split_, idle_, folder_, tokenizer_folder_;  // idle_: an option that `validation` leaves without effect
  std::int64_t vocabulary_, length_;
  std::string class_weights_;
  std::vector<std::string> metrics_;
  std::int64_t shortened_ = 0;  // training texts of which the end is left out
  bool has_length_ = false;     // the option is given
  double folder_dropout_ = -1;  // below 0: that of the model's config.json
  text::Form form_;
  text::Shape shape_;
  text::Code code_ = text::encoder_code;
  State files_;  // files of the tokenizer, and of the model of `folder`
  std::shared_ptr<const vernier::Tokenizer> tokenizer_;
  std::optional<text::PublishedFolder> published_;
  Kind kind_ = Kind::classification;
  bool guessed_classes_ = false;
  vernier::Classes classes_;          // count 0: the target is a number
  std::vector<std::int64_t> counts_;  // training texts of each class
  std::string fingerprint_;           // identifies the data, held-out texts included
  std::shared_ptr<text::Network> network_;
};

// The task with `folder`.
class PublishedText final : public Text, public vernier::PublishedModel {
 public:
  explicit PublishedText(Options& options) : Text(options) {
    if (folder_.empty()) options.refuse("folder", "names no folder; leave it out for an encoder");
  }
  std::string published_name(const std::string& name) const override { return published_->published_name(name); }
  std::string published_folder() const override {
    refuse_units();
    return folder_;
  }
  std::string task_type() const override { return "SEQ_CLS"; }
  void write_published(const std::string& folder) const override {
    refuse_units();
    published_->write(folder, files_, code_, dynamic_cast<const text::PublishedNetwork&>(*network_),
                      kind_ == Kind::classification ? vernier::names_of(classes_) : std::vector<std::string>());
  }
  std::string python_model() const override { return ""; }

 private:
  void refuse_units() const {
    if (kind_ != Kind::regression) return;
    vernier::refuse(
        "a head of transformers gives numbers without mean and deviation, and the targets have them; export onnx or "
        "pt2, which have them inside");
  }
};

vernier::Plugin* create(Options& options) {
  if (options.given("folder")) return new PublishedText(options);
  return new Text(options);
}

}  // namespace

extern "C" VERNIER_API constinit const vernier::Descriptor vernier_plugin =
    vernier::describe(vernier::Task::role, "text", "1.0.0", create);
