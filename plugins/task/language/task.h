// A task that trains a published model on files of tokens or texts: what task/llama and, with `folder`, task/gpt are.
//
// folder                required: the folder of the model, with config.json
// data                  needed: files of tokens, .bin or .npy (vernier/text/token_data.h), or of texts: .txt, .jsonl
//                       and .json, perhaps packed by gzip (vernier/text/language_data.h); []: the model is only used,
//                       not trained
// weights = "folder"    "random": draws new ones by [run] seed, for which config.json is enough
// tokenizer = ""        folder of the tokenizer for texts; empty: the model's folder
// new_tokens = []       special tokens that the tokenizer gets, unless it has them. Embedding and head of the model get
//                       rows for them, if they have too few, each the mean of the others
// context = 256         tokens that a window or a row of texts predicts
// validation = []       held-out files of the same kind
// validation_share = 0.1  the share of windows held out if there are no such files, drawn by [run] seed; 0: none
// shares = []           how often each file is drawn from, relative to the others, without `order`; []: each sample
//                       once in an epoch
// dropout = -1.0        replaces all dropouts of config.json; below 0: those
// sample_prompts = []   texts that each validation continues, in the log; they need a tokenizer
// sample_tokens = 50, temperature = 0.8, top_k = 0, top_p = 1.0  of these, as in vernier/text/generation.h
// Of files of tokens:
// token_type = "auto"   uint8, uint16, int16, uint32, int32, uint64 or int64; auto: what the file says, else uint16 if
//                       the vocabulary fits into it, else uint32
// stride = 0            tokens between the beginnings of two windows; 0: context. One below context takes no
//                       validation_share, whose windows would overlap those to train on
// validation_stride = 0 the same in `validation`, where each token is predicted once, with at least
//                       context - validation_stride tokens before it; 0: context
// Of texts:
// packing = true        several in one row, none of which sees another
// learn = "answers"     of prompts and chats only the answers; "all"
// chat = "auto"         how messages of a chat are written: by the chat template of the tokenizer's folder, or else as
//                       ChatML; "chatml", "llama3"
// instructions = "alpaca"  instruction, input and output become Alpaca's prompt and a completion; "chat": a chat
// fields = {}           the files' names of fields, such as {text = "body"}; then only these are read
// roles = {}            what the files' roles are, such as {bot = "assistant"}
// batch_size = 8
// objective = "likelihood"  of texts; "dpo", "ipo" or "hinge": which of two answers is preferred (preferences.h)
// beta = 0.1            of these: how much the model is held to the one that training began with
// label_smoothing = 0.0 the share of the loss that goes to all tokens alike; of dpo, of pairs that are taken for the
//                       wrong way round
// order = "shuffled", drop_last = false, workers = 1, prefetch = 2, recompute = "none"  see
// vernier/data/supervised_task.h
#pragma once

#include <vernier/data/supervised_task.h>
#include <vernier/draft/capture.h>
#include <vernier/published_model.h>
#include <vernier/text/generation.h>

#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "config.h"
#include "data.h"
#include "folder.h"
#include "model_files.h"
#include "preferences.h"
#include "samples.h"

namespace language {

class PublishedTask : public vernier::SupervisedTask,
                      public vernier::PublishedModel,
                      public vernier::LanguageModel,
                      public vernier::draft::Capturable {
 public:
  PublishedTask(vernier::Options& options, Family family);

  void build(vernier::Run& run) override;
  void attach(vernier::Bus& bus) override;
  vernier::Batch example(std::int64_t samples) const override;
  vernier::State save() const override;
  void load(const vernier::State& state) override;
  vernier::Batch next() override;
  std::optional<double> weight_of(const vernier::Batch& part) const override;
  torch::Tensor loss(const vernier::Batch& micro_batch) override;
  std::vector<vernier::MetricInfo> metrics() const override { return preferences_.metric_infos(); }
  // The losses of preferences read the lengths of texts on the host, as models do that turn positions by them.
  bool allows_capture() const override { return !preferences_.are_learned() && !turns_by_length_; }
  torch::Tensor validate(vernier::Run& run) override;

  std::string published_name(const std::string& name) const override;
  std::string published_folder() const override { return folder_; }
  std::map<std::string, std::string> ties() const override;
  void write_published(const std::string& folder) const override;

  std::int64_t vocabulary() const override { return network_->vocabulary(); }
  std::int64_t longest() const override { return network_->longest(); }
  std::int64_t context() const override { return network_->context(); }
  std::int64_t cacheable() const override { return network_->cacheable(); }
  std::string tokenizer_folder() const override { return data_.tokenizer_folder(model_folder()); }
  // The folder of its files: those of the checkpoint, or else of the option.
  std::string model_folder() const override { return kept_ ? kept_->path() : folder_; }
  std::vector<std::string> end_words() const override;
  std::string chat_template() const override { return has_chats_ ? data_.chat_template(tokenizer_folder()) : ""; }
  bool reads_bytes() const override { return data_.reads_bytes(); }
  torch::Tensor next_logits(const torch::Tensor& tokens, vernier::KeyValueCache* cache) override;

 private:
  void read_data(const vernier::Run& run);
  void learn(const Data::Sets& sets);
  void use_losses();
  void need_references(const std::string& set);
  Texts texts_of(const vernier::Batch& batch) const;

  Family family_;
  std::string folder_, weights_;
  std::vector<std::string> new_tokens_;
  std::optional<ModelFolder> kept_;  // a trained model, or one with new tokens
  vernier::State files_;             // files of the model and its tokenizer
  bool has_chats_ = false;           // it was trained on some
  bool turns_by_length_ = false;     // positions of short texts turn in another way than those of whole rows
  Preferences preferences_;
  Data data_;
  Samples samples_;
  double dropout_;
  std::shared_ptr<Network> network_;
  TokenLoss* token_loss_ = nullptr;
  vernier::Run* run_ = nullptr;
  std::map<std::string, vernier::DatasetPtr> sets_;  // "training", and "held_out" if there is one
  std::set<std::string> ready_;                      // sets whose reference is known
};

}  // namespace language
