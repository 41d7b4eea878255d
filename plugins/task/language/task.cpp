#include "task.h"

#include <ATen/ops/cross_entropy_loss.h>
#include <vernier/control.h>
#include <vernier/error.h>
#include <vernier/run.h>
#include <vernier/text/tokenizer.h>

#include <memory>

namespace language {

namespace {

void refuse_long_rows(const Network& network, const Data& data, const std::string& folder) {
  const auto refuse = [&](const std::string& reason) {
    vernier::refuse(c10::str("context = ", data.context(), ": the model of ", folder, " ", reason));
  };
  const auto longest = network.longest(), same = network.cacheable();
  if (longest > 0 && data.context() > longest) {
    refuse(c10::str("has positions for ", longest, " tokens; give a smaller context"));
  }
  if (data.packs() && same > 0 && data.context() > same) {
    refuse(c10::str("turns the positions of rows above ", same,
                    " tokens in another way, and a packed row has shorter texts; set packing = false"));
  }
}

// Without those that fill rows of texts up: they are in no segment, and behind the last token of an answer.
std::int64_t tokens_in(const vernier::Batch& batch, bool of_pairs) {
  const auto& tensors = batch.tensors;
  if (of_pairs) return tensors.at(2).sum().item<std::int64_t>();
  return tensors.size() > 3 ? (tensors[3] > 0).sum().item<std::int64_t>() : tensors[0].numel();
}

}  // namespace

using vernier::between;

PublishedTask::PublishedTask(vernier::Options& options, Family family)
    : SupervisedTask(options, 8),
      family_(std::move(family)),
      folder_(options.require<std::string>("folder", "the folder of a published model, with config.json")),
      weights_(options.choose("weights", "folder", {"folder", "random"},
                              "what training begins with; random: drawn by [run] seed")),
      new_tokens_(options.get("new_tokens", std::vector<std::string>{},
                              "special tokens that tokenizer and model get, unless the tokenizer has them")),
      preferences_(options),
      data_(options, preferences_.are_learned()),
      samples_(options),
      dropout_(
          options.get("dropout", -1.0, "replaces all dropouts of config.json; below 0: those", between(-1, 0.99))) {}

void PublishedTask::attach(vernier::Bus& bus) {
  SupervisedTask::attach(bus);
  if (!preferences_.are_learned()) return;
  bus.on(vernier::Event::StepBegin, [this](vernier::Run&) { preferences_.forget_rewards(); });
}

void PublishedTask::build(vernier::Run& run) {
  run_ = &run;
  if (is_trained()) {
    preferences_.set_state(learned().part("references"));
    files_ = learned().part("files");
    has_chats_ = learned().integer("has_chats") != 0;
    kept_.emplace(files_);
    data_.forget_tokenizer();
  } else if (!new_tokens_.empty()) {
    files_ = read_model_files(folder_, tokenizer_folder());
    add_tokens(files_, new_tokens_);
    kept_.emplace(files_);
    data_.forget_tokenizer();
  }
  const Config config(model_folder());
  require_model_type(config, family_.layout.model_types, /*is_language_model=*/true);
  network_ = family_.make(config, dropout_, run.seed);
  if (weights_ == "folder" && !is_trained()) {
    read_weights(folder_, *network_, family_.layout, !new_tokens_.empty());
  }
  const auto same = network_->cacheable();
  turns_by_length_ = data_.fills_up() && same > 0 && data_.context() > same;
  network_->run_blocks_by([this](const Network::Part& block, const torch::Tensor& x) { return recomputed(block, x); });
  set_model(network_, [this](const vernier::Batch& batch) { return network_->forward(texts_of(batch)); });
  use_losses();
  if (!reads_data()) return;
  if (data_.names_files()) refuse_long_rows(*network_, data_, folder_);
  if (const auto made_for = network_->context(); data_.names_files() && made_for > 0 && data_.context() > made_for) {
    warn("context = ", data_.context(), ": the model of ", folder_, " was made for ", made_for,
         " tokens (max_position_embeddings), and has learned nothing of positions behind them");
  }
  read_data(run);
  samples_.open(*this, has_chats_);
}

void PublishedTask::use_losses() {
  if (preferences_.are_learned()) {
    const auto ranks = run_->control == nullptr ? 1 : run_->control->ranks();
    if (!is_trained() && batch_size() < ranks) {  // a rank without a pair would not compute the reference
      vernier::refuse(c10::str("batch_size = ", batch_size(), " leaves processes without a pair, because there are ",
                               ranks, "; raise it to ", ranks, " or more"));
    }
    set_loss([this](const torch::Tensor& ratios, const torch::Tensor& targets) {
      return preferences_.loss_of(ratios, targets);
    });
    for (auto& metric : preferences_.metrics()) add_metric(std::move(metric));
    return;
  }
  set_loss([](const torch::Tensor& output, const torch::Tensor& targets) {
    return output.dim() == 0 ? output : at::cross_entropy_loss(output.flatten(0, 1), targets.flatten());
  });
  auto token_loss = std::make_unique<TokenLoss>();
  token_loss_ = token_loss.get();
  add_metric(std::move(token_loss));
}

void PublishedTask::read_data(const vernier::Run& run) {
  if (!data_.is_given()) {
    vernier::refuse("`data` is needed: files of tokens, .bin or .npy, or of texts, .txt, .jsonl and .json");
  }
  if (!data_.names_files()) {  // next() refuses to train
    if (!is_trained()) learn({});
    const auto nothing = torch::zeros({1, 2}, torch::kInt64);
    return set_training(vernier::tensor_dataset({nothing, nothing}));
  }
  auto sets = data_.load(vocabulary(), model_folder(), run.seed, is_trained() ? learned() : vernier::State());
  info(sets.summary);
  if (!is_trained()) learn(sets);
  set_training(sets.training, sets.weights);
  sets_["training"] = sets.training;
  if (!sets.held_out) return;
  add_validation(sets.held_out);
  sets_["held_out"] = sets.held_out;
}

// A trained model is used without its data, and without the folders that it came from.
void PublishedTask::learn(const Data::Sets& sets) {
  if (!kept_) files_ = read_model_files(folder_, tokenizer_folder());
  has_chats_ = sets.has_chats;
  vernier::State facts;
  facts.put("files", files_);
  facts.put("", sets.facts);
  facts.put("has_chats", std::int64_t{has_chats_});
  set_learned(std::move(facts));
}

// A program that uses the model gives it tokens of one text: of packed rows neither positions nor segments, and of
// pairs the chosen answers.
vernier::Batch PublishedTask::example(std::int64_t samples) const {
  auto batch = SupervisedTask::example(samples);
  if (preferences_.are_learned()) batch.tensors[0] = batch.tensors[0].select(1, 0).contiguous();
  batch.tensors.resize(1);
  return batch;
}

// Here the model is in the run's precision, with its adapters, so the reference is what training begins with.
void PublishedTask::need_references(const std::string& set) {
  if (ready_.count(set) > 0) return;
  const auto& asked = sets_.at(set);
  if (!preferences_.has(set, asked)) {
    if (is_trained() || run_->step > 0) {
      vernier::refuse(
          "objective: the checkpoint has no log-probabilities of these pairs by the model that training "
          "began with, and that model is gone; evaluate on the pairs that the run held out");
    }
    for (const auto& [name, dataset] : sets_) {
      info("computes the log-probabilities of ", dataset->size(), " pairs (", name, ") by the model as it is now");
      preferences_.compute(name, dataset, *network_, run_->device);
    }
  }
  ready_.insert(set);
}

vernier::State PublishedTask::save() const {
  auto state = SupervisedTask::save();
  if (preferences_.are_learned()) state.put("learned/references", preferences_.state());
  return state;
}

void PublishedTask::load(const vernier::State& state) {
  SupervisedTask::load(state);
  ready_.clear();
  preferences_.forget_rewards();
  preferences_.set_state(state.part("learned/references"));
}

// A batch of texts has targets in its second tensor, but for those that have none: an example for export.
Texts PublishedTask::texts_of(const vernier::Batch& batch) const {
  const auto& tensors = batch.tensors;
  if (tensors.size() > 1 && turns_by_length_) {  // the host waits for the device
    return {.tokens = tensors[0], .longest = (tensors.back() > 0).sum(1).max().item<std::int64_t>()};
  }
  if (!data_.packs() || tensors.size() == 1) return {tensors[0]};
  const std::size_t first = tensors.size() == 3 ? 1 : 2;
  return {tensors[0], tensors[first], tensors[first + 1]};
}

vernier::Batch PublishedTask::next() {
  if (!data_.names_files()) vernier::refuse("data names no file, so there is nothing to train on");
  auto batch = SupervisedTask::next();
  if (batch.samples > 0) batch.tokens = tokens_in(batch, preferences_.are_learned());
  return batch;
}

torch::Tensor PublishedTask::loss(const vernier::Batch& micro_batch) {
  if (!preferences_.are_learned()) {
    return network_->loss(texts_of(micro_batch), micro_batch.tensors.at(1), preferences_.label_smoothing());
  }
  need_references("training");
  auto loss = preferences_.loss("training", *network_, micro_batch);
  preferences_.report_rewards(*run_);
  return loss;
}

// Pairs count alike. Rows of texts learn different numbers of tokens, and the loss is the mean over all that an update
// learns.
std::optional<double> PublishedTask::weight_of(const vernier::Batch& part) const {
  if (preferences_.are_learned()) return std::nullopt;
  if (part.tensors.empty()) return 0;
  return (part.tensors[1] >= 0).sum().item<double>();
}

// The loss of texts is the mean over all tokens, which are not as many in each row.
torch::Tensor PublishedTask::validate(vernier::Run& run) {
  for (const auto& text : samples_.write(*this, run.device, run.seed + static_cast<std::uint64_t>(run.step))) {
    info("sample after step ", run.step, ":\n", text);
  }
  if (preferences_.are_learned()) {
    if (sets_.count("held_out") > 0) need_references("held_out");
    return validate_with(
        run, [this](const vernier::Batch& pairs) { return preferences_.ratios("held_out", *network_, pairs); });
  }
  const auto loss = validate_with(
      run, [this](const vernier::Batch& batch) { return network_->loss(texts_of(batch), batch.tensors.at(1)); });
  return loss.defined() ? token_loss_->mean() : loss;
}

torch::Tensor PublishedTask::next_logits(const torch::Tensor& tokens, vernier::KeyValueCache* cache) {
  return network_->next_logits({.tokens = tokens, .cache = cache});
}

std::string PublishedTask::published_name(const std::string& name) const {
  return language::published_name(family_.layout, name);
}

std::map<std::string, std::string> PublishedTask::ties() const {
  if (!network_->is_tied()) return {};
  const auto& layout = family_.layout;
  return {{"lm_head", layout.prefix + layout.embedding.substr(0, layout.embedding.rfind('.'))}};
}

std::vector<std::string> PublishedTask::end_words() const {
  const auto folder = tokenizer_folder();
  return has_chats_ && !folder.empty() ? std::vector{data_.end_of_answer(folder)} : std::vector<std::string>();
}

// Programs that generate with the folder write chats as in training, and end an answer where its messages ended.
void PublishedTask::write_published(const std::string& folder) const {
  auto files = files_;
  if (const auto folder = tokenizer_folder(); has_chats_ && !folder.empty()) {
    if (vernier::chat_template_of(folder).empty()) put_text(files, "chat_template.jinja", chat_template());
    if (const auto end = vernier::open_tokenizer(folder)->id(data_.end_of_answer(folder))) add_end(files, *end);
  }
  write_folder(folder, files, *network_, family_.layout);
}

}  // namespace language
