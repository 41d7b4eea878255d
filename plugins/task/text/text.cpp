// text: trains a transformer encoder on texts of a CSV file or of JSON Lines, to predict a class or a number of each.
//
// data                  required: CSV file, or JSON Lines (.jsonl) with an object in each line
// text = ["text"]       the columns or fields with the text; several are joined by a line end
// target = "label"      the column or field that is predicted
// kind = "auto"         classification | regression | auto: words and whole numbers of few kinds are classes
// validation = ""       file with the same columns that is held out
// validation_share = 0.1   of the texts that is held out, where `validation` is not given; 0: none
// split = "auto"        how they are drawn: random; stratified, by class; last, those at the end; auto: stratified for
//                       classes, else random
// tokenizer = ""        folder of a tokenizer (docs/tokenizer.md); "": byte-level BPE is learned of the training texts
// vocabulary = 4000     tokens of a learned tokenizer, at most; a pair that occurs once is not merged
// length = 128          tokens of a text that are read; the rest is left out
// width = 64, layers = 2, heads = 4, dropout = 0.1  of the encoder
// class_weights = "none"  classification: or "balanced": in the loss all classes weigh the same in sum
// metrics = []          names; []: accuracy and f1, and auc for two classes; or mae, rmse and r2
// types = {}, missing = "refuse", separator = "", decimal = ".", thousands = "", encoding = "utf-8", header = true,
// missing_words = ["NA", "N/A", "NaN", "nan", "NULL", "null", "#N/A", "n/a", "NaT", "?"]
// skip_lines = 0        of CSV files, as of task/tabular; missing: "refuse" or "drop", whose rows are not used
// batch_size = 32, order = "shuffled", drop_last = false, workers = 1, prefetch = 2, recompute = "none"
//                       see docs/data.md; recompute computes each block again in backward
//
// The tokens of a text are a token for its beginning and those of the tokenizer. The mean of the encoder's outputs over
// them is classified. All that is learned of data is learned of the training texts: the tokenizer, the longest text,
// and mean and deviation of targets that are numbers. Checkpoints and exports have the tokenizer in them. The loss of a
// regression is the mean squared error over the variance of the training targets, so 1 is as good as their mean.
#include <ATen/ops/cross_entropy_loss.h>
#include <ATen/ops/mse_loss.h>
#include <c10/util/StringUtil.h>
#include <torch/types.h>
#include <vernier/bpe_trainer.h>
#include <vernier/data_source.h>
#include <vernier/json_text.h>
#include <vernier/predictor.h>
#include <vernier/sdk.h>
#include <vernier/split.h>
#include <vernier/supervised_task.h>
#include <vernier/tokenizer.h>

#include <algorithm>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <utility>

#include "../language/model_files.h"
#include "../predicted.h"
#include "../units.h"
#include "network.h"
#include "reading.h"

namespace {

using vernier::between;
using vernier::DatasetPtr;
using vernier::Options;
using vernier::Run;
using vernier::SplitRows;
using vernier::State;

constexpr const char* tokenizer_file = "tokenizer.json";

std::vector<std::string> chosen(const std::vector<std::string>& texts, const torch::Tensor& rows) {
  std::vector<std::string> some;
  const auto* row = rows.const_data_ptr<std::int64_t>();
  for (std::int64_t i = 0; i < rows.numel(); ++i) some.push_back(texts.at(static_cast<std::size_t>(row[i])));
  return some;
}

// Byte-level BPE of texts, as the files of a tokenizer's folder.
State learned_tokenizer(const std::vector<std::string>& texts, std::int64_t vocabulary) {
  vernier::PieceCounts counts;
  for (const auto& text : texts) counts.add(text);
  const language::ModelFolder folder({});
  vernier::save_bpe(folder.path(),
                    vernier::train_bpe(counts, {.vocabulary = vocabulary, .min_count = 2, .special = {}}), {});
  const auto files = language::read_model_files(folder.path(), "");
  return {{tokenizer_file, files.tensor(tokenizer_file)}};
}

// Samples of a file.
struct Data {
  DatasetPtr dataset;
  torch::Tensor targets;  // codes of classes, or numbers
};

class Text final : public vernier::SupervisedTask, public vernier::Predictor {
 public:
  explicit Text(Options& options)
      : SupervisedTask(options),
        data_(options.require<std::string>("data", "CSV file, or JSON Lines (.jsonl) with an object in each line")),
        validation_(options.get("validation", "", "file with the same columns that is held out")),
        share_(options.get("validation_share", 0.1, "of the texts that is held out, without `validation`; 0: none",
                           between(0, 0.9))),
        split_(options.choose("split", "auto", {"auto", "random", "stratified", "last"}, "how texts are held out")),
        folder_(options.get("tokenizer", "", "folder of a tokenizer; empty: it is learned of the training texts")),
        vocabulary_(options.get("vocabulary", 4000, "tokens of a learned tokenizer, at most", between(256, 1e6))),
        length_(options.get("length", 128, "tokens of a text that are read", between(2, 65536))),
        class_weights_(options.choose("class_weights", "none", {"none", "balanced"}, "classification: in the loss")),
        metrics_(options.get("metrics", std::vector<std::string>{}, "names; []: those usual for the kind")) {
    for (const char* key : {"data", "validation", "tokenizer"}) options.resumable(key);  // content counts, not path
    form_.fields = options.get("text", std::vector<std::string>{"text"}, "columns or fields with the text");
    form_.target = options.get("target", "label", "the column or field that is predicted");
    form_.kind = options.choose("kind", "auto", {"auto", "classification", "regression"}, "what is predicted");
    form_.csv = vernier::csv_options(options, {"refuse", "drop"});
    form_.csv.fill_remedy = R"(set missing = "drop")";
    read_shape(options);
    refuse_contradictions(options);
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
    if (!is_classification_ && class_weights_ != "none") {
      refuse("`class_weights` is for classes, and the target is a number");
    }
    make_model(data, split.training);
    choose_loss();
    for (auto& metric : metrics_of(metrics_, classes_.count)) add_metric(std::move(metric));
    if (!data.dataset) return;
    set_training(part_of(data, split.training));
    if (!is_trained()) {
      learn_targets(vernier::target_facts(data.targets.index_select(0, split.training), classes_.count));
    }
    if (split.held_out.numel() > 0) {
      add_validation(part_of(data, split.held_out));
    } else if (!validation_.empty()) {
      add_validation(read(validation_).dataset);
    }
  }

  DatasetPtr read_inputs(const std::string& path) override {
    const auto texts = text::read_texts(path, form_, false);
    return text::text_dataset(tokens_of(path, texts.texts), {}, texts.where);
  }

  std::vector<Column> predict(const vernier::Batch& batch) override {
    const auto output = forward(batch);
    if (is_classification_) return class_columns(output, form_.target, vernier::names_of(classes_));
    return {{form_.target, in_units(output, network_->target_mean, network_->target_deviation)}};
  }

  std::string description() const override {
    auto facts = this->facts();
    facts["input"] = {{"dtype", "int64"}, {"shape", {"samples", shape_.length}}};
    facts["input"]["tokens"] = c10::str(text::begin, ", then the ids of the tokenizer, each plus ", text::first_id,
                                        ", then ", text::padding, " up to the length");
    facts["output"] = is_classification_ ? "logits of the classes" : "numbers, in the units of the target";
    return vernier::json_text(facts, 2);
  }

  std::string python_model() const override {
    return python_source(shape_, vernier::json_text(facts(), -1),
                         language::text_of(learned().part("given"), tokenizer_file));
  }

 private:
  [[noreturn]] void refuse(const std::string& reason) const { vernier::refuse("'" + data_ + "': " + reason); }

  void read_shape(Options& options) {
    shape_.width = options.get("width", shape_.width, "of the encoder", between(1, 65536));
    shape_.layers = options.get("layers", shape_.layers, "blocks of the encoder", between(1, 1000));
    shape_.heads = options.get("heads", shape_.heads, "attention heads of a block", between(1, 1000));
    shape_.dropout = options.get("dropout", 0.1, "after the embedding, and in each block", between(0, 0.9));
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
    if (!folder_.empty() && options.given("vocabulary")) {
      options.refuse("vocabulary", "is for a tokenizer that is learned; leave it out");
    }
    if (options.given("split") && !validation_.empty()) {
      options.refuse("split", "has no effect with `validation`; leave one of them out");
    }
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
    nlohmann::ordered_json facts = {{"task", "text"}, {"kind", is_classification_ ? "classification" : "regression"}};
    facts["text"] = form_.fields;
    facts["target"] = form_.target;
    if (is_classification_) facts["classes"] = vernier::names_of(classes_);
    if (is_classification_) facts["texts_of_classes"] = counts_;
    facts["length"] = shape_.length;
    facts["tokens"] = shape_.tokens;
    facts["data"] = fingerprint_;
    return facts;
  }

  void recall() {
    const auto facts = nlohmann::ordered_json::parse(learned().text("texts"));
    const auto target = facts.at("target").get<std::string>(), kind = facts.at("kind").get<std::string>();
    is_classification_ = kind == "classification";
    if (form_.target != target) {
      refuse("target = \"" + form_.target + "\", and the trained model predicts '" + target + "'");
    }
    if (form_.kind != "auto" && form_.kind != kind) {
      refuse("kind = \"" + form_.kind + "\", and the trained model is of the other kind");
    }
    form_.kind = facts.at("kind");
    if (is_classification_) {
      const auto names = facts.at("classes").get<std::vector<std::string>>();
      classes_ = {std::ssize(names), names};
      counts_ = facts.at("texts_of_classes").get<std::vector<std::int64_t>>();
    }
    shape_.length = facts.at("length"), shape_.tokens = facts.at("tokens");
    fingerprint_ = facts.at("data");
    open_tokenizer(learned().part("given"));
  }

  void open_tokenizer(const State& files) {
    const language::ModelFolder folder(files);
    tokenizer_ = vernier::open_tokenizer(folder.path());
  }

  // Codes of the classes, or numbers; for the first file it decides which.
  torch::Tensor targets_of(const vernier::Source& source) {
    if (form_.kind == "auto") {
      guessed_classes_ = source.words.empty() && vernier::class_numbers(source.tensor).defined();
      is_classification_ = !source.words.empty() || guessed_classes_;
    } else {
      is_classification_ = form_.kind == "classification";
    }
    if (is_classification_) return vernier::codes_of(source, classes_, "set kind = \"regression\"");
    if (!source.words.empty()) vernier::refuse("'" + source.name + "' has words; set kind = \"classification\"");
    vernier::require_finite(source);
    return source.tensor.to(torch::kFloat64);
  }

  SplitRows divide(const torch::Tensor& targets, std::uint64_t seed) const {
    const auto count = targets.size(0);
    if (!validation_.empty() || share_ == 0) return {torch::arange(count), torch::empty({0}, torch::kInt64)};
    if (split_ == "stratified" && !is_classification_) {
      refuse("split = \"stratified\" is for classes, and the target is a number");
    }
    if (split_ == "last") return vernier::split_last(count, share_);
    return is_classification_ && split_ != "random" ? vernier::split_classes(targets, share_, seed)
                                                    : vernier::split_random(count, share_, seed);
  }

  // Reads the data to train on and learns of the training texts.
  void learn(Data& data, SplitRows& split, std::uint64_t seed) {
    const auto texts = text::read_texts(data_, form_, true);
    data.targets = targets_of(texts.target);
    split = divide(data.targets, seed);
    const auto targets = data.targets.index_select(0, split.training);
    check_targets(targets, split);
    const auto training = chosen(texts.texts, split.training);
    const auto files =
        folder_.empty() ? learned_tokenizer(training, vocabulary_) : language::read_model_files(folder_, "");
    if (folder_.empty()) {
      open_tokenizer(files);
    } else {
      tokenizer_ = vernier::open_tokenizer(folder_);  // whose errors name the folder
    }
    const auto found = text::encode(*tokenizer_, training, length_, true);
    shape_.length = found.tokens.size(1);
    shape_.tokens = tokenizer_->vocabulary() + text::first_id;
    data.dataset = text::text_dataset(text::encode(*tokenizer_, texts.texts, shape_.length, false).tokens, data.targets,
                                      texts.where);
    fingerprint_ = data.dataset->fingerprint();
    report(data.targets, found);
    State learned;
    learned.put("texts", vernier::json_text(facts(), -1));
    learned.put("given", files);
    set_learned(std::move(learned));
  }

  void check_targets(const torch::Tensor& training, const SplitRows& split) {
    if (training.numel() == 0) refuse("no text is left to train on");
    if (share_ > 0 && validation_.empty() && split.held_out.numel() == 0) {
      refuse("no text can be held out; set validation_share = 0 or `validation`");
    }
    if (!is_classification_) {
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

  void report(const torch::Tensor& targets, const text::Encoded& training) const {
    info(is_classification_ ? "classification of " + vernier::counted(classes_, targets)
                            : c10::str("regression of ", form_.target, " (", targets.min().item<double>(), " to ",
                                       targets.max().item<double>(), ")"),
         guessed_classes_ ? ", since the target has whole numbers; for a regression set kind = \"regression\"" : "",
         "; ", targets.size(0), " texts of up to ", training.longest, " tokens; a vocabulary of ",
         tokenizer_->vocabulary(), folder_.empty() ? ", learned of the training texts" : ", of '" + folder_ + "'");
    if (training.shortened == 0) return;
    warn("'", data_, "': ", training.shortened, " training texts have more than ", length_,
         " tokens, and the rest of them is left out; raise `length`");
  }

  // Reads data with the facts of the training: the same texts are held out, and all texts of other data.
  void read_again(Data& data, SplitRows& split, std::uint64_t seed) {
    std::error_code none;
    const bool has_data = std::filesystem::exists(data_, none);
    if (!has_data && validation_.empty()) {
      vernier::refuse("'" + data_ + "' is not here; name a file to evaluate on, as in --set task.data=new.csv");
    }
    data = read(has_data ? data_ : validation_);
    const auto all = torch::arange(data.targets.size(0));
    split = data.dataset->fingerprint() == fingerprint_ ? divide(data.targets, seed) : SplitRows{all, all};
  }

  // Another file than that to train on, with targets.
  Data read(const std::string& path) {
    const auto texts = text::read_texts(path, form_, true);
    Data data;
    data.targets = targets_of(texts.target);
    data.dataset = text::text_dataset(tokens_of(path, texts.texts), data.targets, texts.where);
    return data;
  }

  torch::Tensor tokens_of(const std::string& path, const std::vector<std::string>& texts) const {
    const auto encoded = text::encode(*tokenizer_, texts, shape_.length, false);
    if (encoded.shortened > 0) {
      info("'", path, "': of ", encoded.shortened, " texts no more than ", shape_.length, " tokens are read");
    }
    return encoded.tokens;
  }

  static DatasetPtr part_of(const Data& data, const torch::Tensor& rows) {
    return rows.numel() == data.dataset->size() ? data.dataset : vernier::subset(data.dataset, rows);
  }

  void make_model(const Data& data, const torch::Tensor& training) {
    shape_.outputs = is_classification_ ? classes_.count : 1;
    const auto network = std::make_shared<text::Network>(
        shape_, [this](const auto& part, const auto& x) { return recomputed(part, x); });
    if (!is_trained() && !is_classification_) network->standardise(data.targets.index_select(0, training));
    set_model(network);
    network_ = network.get();
  }

  void choose_loss() {
    if (!is_classification_) {
      set_loss([net = network_](const auto& output, const auto& numbers) {
        return at::mse_loss(output / net->target_deviation, numbers / net->target_deviation);
      });
    } else if (class_weights_ == "none") {
      set_loss([](const auto& output, const auto& classes) { return at::cross_entropy_loss(output, classes); });
    } else {
      set_loss(vernier::balanced_cross_entropy(torch::tensor(counts_)));
    }
  }

  std::string data_, validation_;
  double share_;
  std::string split_, folder_;
  std::int64_t vocabulary_, length_;
  std::string class_weights_;
  std::vector<std::string> metrics_;
  text::Form form_;
  text::Shape shape_;
  std::shared_ptr<const vernier::Tokenizer> tokenizer_;
  bool is_classification_ = false, guessed_classes_ = false;
  vernier::Classes classes_;          // count 0: a regression
  std::vector<std::int64_t> counts_;  // of each class: its training texts
  std::string fingerprint_;           // of the data, held-out texts included
  text::Network* network_ = nullptr;  // of the model
};

}  // namespace

VERNIER_PLUGIN(Text, "text", "1.0.0")
