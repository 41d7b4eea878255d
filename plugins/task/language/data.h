// The data of the tasks of language models: files of tokens, or texts through a tokenizer.
#pragma once

#include <vernier/dataset.h>
#include <vernier/evaluation.h>
#include <vernier/language_data.h>
#include <vernier/options.h>

#include <cstdint>
#include <string>
#include <vector>

namespace language {

// Reads the options of the data, which task.h lists, and makes datasets of the files.
class Data {
 public:
  explicit Data(vernier::Options& options);

  bool is_given() const { return is_given_; }  // the option is, perhaps as an empty list
  bool names_files() const { return !files_.empty(); }
  // Files of texts, whose samples are {inputs, targets, positions, segments} as in vernier/language_data.h. Those of
  // tokens are {inputs, targets}.
  bool are_texts() const { return are_texts_; }
  bool packs() const { return texts_.packs; }
  bool reads_bytes() const { return token_type_ == "uint8"; }
  std::int64_t context() const { return context_; }
  // Returns the tokenizer folder that the option names, or the model's own, or "" if there is none.
  std::string tokenizer_folder(const std::string& model) const;

  struct Sets {
    vernier::DatasetPtr training, held_out;  // held_out: may be missing
    torch::Tensor weights;                   // of the training samples; undefined: all are drawn once
    std::string summary;                     // what was read of texts
  };
  // vocabulary: of the model, whose folder may have a tokenizer.
  Sets load(std::int64_t vocabulary, const std::string& model, std::uint64_t seed) const;

 private:
  void refuse_mistakes(const vernier::Options& options) const;
  std::vector<vernier::DatasetPtr> read(const std::vector<std::string>& files, std::int64_t vocabulary,
                                        const std::string& model, std::string& summary) const;
  std::vector<vernier::DatasetPtr> texts_of(const std::vector<std::string>& files, std::int64_t vocabulary,
                                            const std::string& model, std::string& summary) const;
  vernier::DatasetPtr tokens_of(const std::string& file, std::int64_t vocabulary, std::int64_t stride) const;
  vernier::DatasetPtr held_out_windows(std::int64_t vocabulary) const;

  bool is_given_, are_texts_ = false;
  std::vector<std::string> files_, held_out_;
  std::string token_type_, tokenizer_;
  std::int64_t context_, stride_, validation_stride_;
  double share_;
  std::vector<double> shares_;
  vernier::LanguageDataOptions texts_;
};

// The mean loss of all tokens of a validation that are learned: "perplexity" is its exponential.
class TokenLoss final : public vernier::Metric {
 public:
  std::string name() const override { return "perplexity"; }
  void reset() override { sum_ = count_ = torch::Tensor(); }
  void update(const torch::Tensor& logits, const torch::Tensor& targets) override;
  torch::Tensor value() const override { return mean().exp(); }
  torch::Tensor mean() const { return sum_ / count_; }
  std::optional<vernier::State> state_dict() const override;
  void add(const vernier::State& state) override;

 private:
  torch::Tensor sum_, count_;
};

}  // namespace language
