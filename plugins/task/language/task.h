// A task that trains a published model on the tokens of files: what task/llama and, with `folder`, task/gpt are.
//
// folder                required: the folder of the model, with config.json
// data                  needed: files of tokens without a header (vernier/readers.h); []: the model is only used
// weights = "folder"    "random": draws new ones by [run] seed, for which config.json is enough
// token_type = "auto"   uint8, uint16, uint32; auto: uint16 if the vocabulary fits into it, else uint32
// context = 256         tokens that a window predicts
// stride = 0            tokens between the beginnings of two windows; 0: context
// validation = []       held-out files of tokens
// validation_share = 0.1  the share of windows held out if there are no such files, drawn by [run] seed; 0: none
// dropout = -1.0        in the place of all dropouts of config.json; below 0: those
// batch_size = 8
// order = "shuffled", drop_last = false, workers = 1, prefetch = 2, recompute = "none"  see vernier/supervised_task.h
#pragma once

#include <vernier/generation.h>
#include <vernier/published_model.h>
#include <vernier/supervised_task.h>

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "config.h"
#include "folder.h"

namespace language {

struct Family {
  Layout layout;
  // Builds the network that a config.json describes. dropout: in the place of those of the config; below 0: those.
  std::function<std::shared_ptr<Network>(const Config& config, double dropout, std::uint64_t seed)> make;
};

class PublishedTask : public vernier::SupervisedTask, public vernier::PublishedModel, public vernier::LanguageModel {
 public:
  PublishedTask(vernier::Options& options, Family family);

  void build(vernier::Run& run) override;
  vernier::Batch next() override;
  torch::Tensor validate(vernier::Run& run) override;

  std::string published_name(const std::string& name) const override;
  std::string published_folder() const override { return folder_; }
  void write_published(const std::string& folder) const override;

  std::int64_t vocabulary() const override { return network_->vocabulary(); }
  std::int64_t longest() const override { return network_->longest(); }
  std::int64_t cacheable() const override { return network_->cacheable(); }
  std::string tokenizer_folder() const override;
  bool reads_bytes() const override { return token_type_ == "uint8"; }
  torch::Tensor next_logits(const torch::Tensor& tokens, vernier::KeyValueCache* cache) override;

 private:
  vernier::DatasetPtr windows_of(const std::vector<std::string>& files) const;
  void read_data(const vernier::Run& run);

  Family family_;
  std::string folder_, weights_, token_type_;
  std::vector<std::string> data_, held_out_;
  bool names_data_ = false;
  std::int64_t context_, stride_;
  double share_, dropout_;
  std::shared_ptr<Network> network_;
};

}  // namespace language
