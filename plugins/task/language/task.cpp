#include "task.h"

#include <ATen/ops/cross_entropy_loss.h>
#include <vernier/error.h>
#include <vernier/readers.h>

#include <filesystem>

namespace language {

using vernier::between;

PublishedTask::PublishedTask(vernier::Options& options, Family family)
    : SupervisedTask(options, 8),
      family_(std::move(family)),
      folder_(options.require<std::string>("folder", "the folder of a published model, with config.json")),
      weights_(options.choose("weights", "folder", {"folder", "random"},
                              "what training begins with; random: drawn by [run] seed")),
      token_type_(options.choose("token_type", "auto", {"auto", "uint8", "uint16", "uint32"},
                                 "of the files; auto: uint16 if the vocabulary fits into it, else uint32")),
      data_(options.get("data", std::vector<std::string>{},
                        "needed: files of tokens without a header; []: the model is only used, not trained")),
      held_out_(options.get("validation", std::vector<std::string>{}, "held-out files of tokens")),
      context_(options.get("context", 256, "tokens that a window predicts", between(1, 1e7))),
      stride_(options.get("stride", 0, "tokens between the beginnings of two windows; 0: context", between(0, 1e7))),
      share_(options.get("validation_share", 0.1, "share of windows held out without validation; 0: none",
                         between(0, 0.9))),
      dropout_(options.get("dropout", -1.0, "in the place of all dropouts of config.json; below 0: those",
                           between(-1, 0.99))) {
  names_data_ = options.given("data");
}

void PublishedTask::build(vernier::Run& run) {
  if (!names_data_) vernier::refuse("`data` is needed: files of tokens without a header");
  const Config config(folder_);
  require_model_type(config, family_.layout.model_type);
  network_ = family_.make(config, dropout_, run.seed);
  if (weights_ == "folder") read_weights(folder_, *network_, family_.layout);
  if (const auto longest = network_->longest(); !data_.empty() && longest > 0 && context_ > longest) {
    vernier::refuse(c10::str("context = ", context_, ": the model of ", folder_, " has positions for ", longest,
                             " tokens; give a smaller context"));
  }
  network_->run_blocks_by([this](const Network::Part& block, const torch::Tensor& x) { return recomputed(block, x); });
  set_model(network_,
            [network = network_.get()](const vernier::Batch& batch) { return network->forward(batch.tensors[0]); });
  set_loss([](const torch::Tensor& logits, const torch::Tensor& targets) {
    return at::cross_entropy_loss(logits.flatten(0, 1), targets.flatten());
  });
  read_data(run);
}

vernier::DatasetPtr PublishedTask::windows_of(const std::vector<std::string>& files) const {
  constexpr std::int64_t most_in_16_bits = 65536;
  vernier::WindowOptions options;
  options.length = context_;
  options.stride = stride_;
  options.vocabulary = network_->vocabulary();
  const bool is_short = token_type_ == "uint16" || (token_type_ == "auto" && options.vocabulary <= most_in_16_bits);
  const auto type = token_type_ == "uint8" ? torch::kUInt8 : is_short ? torch::kUInt16 : torch::kUInt32;
  std::vector<vernier::DatasetPtr> all;
  all.reserve(files.size());
  for (const auto& file : files) all.push_back(vernier::token_dataset(file, type, options));
  return all.size() == 1 ? all.front() : vernier::concat(all);
}

void PublishedTask::read_data(const vernier::Run& run) {
  if (data_.empty()) {  // next() refuses to train
    return set_training(
        vernier::tensor_dataset({torch::zeros({1, 2}, torch::kInt64), torch::zeros({1, 2}, torch::kInt64)}));
  }
  auto training = windows_of(data_);
  vernier::DatasetPtr held_out;
  if (!held_out_.empty()) {
    held_out = windows_of(held_out_);
  } else if (share_ > 0) {
    std::tie(training, held_out) = vernier::split(training, share_, run.seed);
  }
  if (training->size() == 0) {
    vernier::refuse("data: no window is left to train on; give more tokens, a smaller context, or hold out less");
  }
  set_training(training);
  if (held_out) add_validation(held_out);
}

vernier::Batch PublishedTask::next() {
  if (data_.empty()) vernier::refuse("data names no file, so there is nothing to train on");
  auto batch = SupervisedTask::next();
  batch.tokens = batch.tensors[0].numel();
  return batch;
}

// All windows have the same number of tokens, so the mean over the windows is that over the tokens.
torch::Tensor PublishedTask::validate(vernier::Run& run) {
  auto loss = SupervisedTask::validate(run);
  if (loss.defined()) run.metrics.set("perplexity", loss.exp());
  return loss;
}

// Hugging Face's files of a tokenizer, if the folder has them.
std::string PublishedTask::tokenizer_folder() const {
  const std::filesystem::path folder(folder_);
  std::error_code none;
  const bool has_one =
      std::filesystem::exists(folder / "tokenizer.json", none) || std::filesystem::exists(folder / "vocab.json", none);
  return has_one ? folder_ : "";
}

torch::Tensor PublishedTask::next_logits(const torch::Tensor& tokens, vernier::KeyValueCache* cache) {
  return network_->next_logits({.tokens = tokens.unsqueeze(0), .cache = cache});
}

std::string PublishedTask::published_name(const std::string& name) const {
  return language::published_name(family_.layout, name);
}

void PublishedTask::write_published(const std::string& folder) const {
  write_folder(folder, folder_, *network_, family_.layout);
}

}  // namespace language
