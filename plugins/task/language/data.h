// The data of the tasks of language models: files of tokens, or texts through a tokenizer.
#pragma once

#include <vernier/data/dataset.h>
#include <vernier/data/evaluation.h>
#include <vernier/options.h>
#include <vernier/text/language_data.h>

#include <cstdint>
#include <string>
#include <vector>

namespace language {

// Reads the options of the data, which task.h lists, and makes datasets of the files.
class Data {
 public:
  // pairs: the texts are pairs of answers (preferences.h).
  Data(vernier::Options& options, bool pairs);

  bool is_given() const { return is_given_; }  // the option is, perhaps as an empty list
  bool names_files() const { return !files_.empty(); }
  // True if rows have several texts: samples are {inputs, targets, positions, segments}, as in
  // vernier/text/language_data.h.
  bool packs() const { return are_texts_ && texts_.packs && !are_pairs_; }
  bool fills_up() const { return are_texts_ && !texts_.packs && !are_pairs_; }  // a row is a text, and what fills it up
  bool reads_bytes() const { return token_type_ == "uint8"; }
  std::int64_t context() const { return context_; }
  // Returns the tokenizer folder that the option names, or the model's own, or "" if there is none.
  std::string tokenizer_folder(const std::string& model) const;

  // Takes the tokenizer from the model's folder, whatever the option names.
  void forget_tokenizer() { tokenizer_.clear(); }
  // folder: of the tokenizer. end_of_answer() is the added token that ends an answer, or "". chat_template() is the
  // Jinja of the style that chats are written in; "" if the folder has a template of its own, which writes them.
  std::string end_of_answer(const std::string& folder) const;
  std::string chat_template(const std::string& folder) const;

  struct Sets {
    vernier::DatasetPtr training, held_out;  // held_out: may be missing
    torch::Tensor weights;                   // weights of the training samples; undefined: all are drawn once
    std::string summary;                     // describes the files that were read
    vernier::State facts;                    // facts of NamedData
    bool has_chats = false;                  // some are messages
  };
  // folder: of the model, which may have a tokenizer. trained: has the `facts` of the data that a trained model knows;
  // none of a new one. All of other data are held out.
  Sets load(std::int64_t vocabulary, const std::string& folder, std::uint64_t seed,
            const vernier::State& trained) const;

 private:
  // Whom the data are read for, and what was read.
  struct Model {
    std::int64_t vocabulary;
    std::string folder, checksum, summary;  // checksum: of its tokenizer
    bool has_chats;
    void note(const std::string& what) { summary += (summary.empty() ? "" : "; ") + what; }
  };
  void refuse_mistakes(const vernier::Options& options) const;
  std::string checksum_of_tokenizer(const std::string& model) const;
  std::vector<vernier::DatasetPtr> read(const std::vector<std::string>& files, Model& model) const;
  std::vector<vernier::DatasetPtr> texts_of(const std::vector<std::string>& files, Model& model) const;
  std::string own_template() const;                                         // the style's template, in Jinja
  vernier::LanguageDataOptions texts_for(const std::string& folder) const;  // options for the tokenizer in the folder
  vernier::DatasetPtr text_of(const std::string& file, const vernier::Tokenizer& tokenizer,
                              const vernier::LanguageDataOptions& texts, Model& model) const;
  vernier::DatasetPtr tokens_of(const std::string& file, Model& model, std::int64_t stride) const;
  vernier::DatasetPtr held_out_of(const std::vector<std::string>& files, Model& model) const;
  void read_both(Model& model, std::uint64_t seed, Sets& sets) const;

  bool is_given_, are_pairs_, are_texts_ = false;
  std::vector<std::string> files_, held_out_;
  std::string token_type_, tokenizer_, chat_;
  std::int64_t context_, stride_, validation_stride_;
  double share_;
  std::vector<double> shares_;
  std::string idle_;  // why no model can be trained with these options; "" if one can
  vernier::LanguageDataOptions texts_;
};

// The mean loss of all tokens of a validation that are learned: "perplexity" is its exponential.
class TokenLoss final : public vernier::Metric {
 public:
  std::string name() const override { return "perplexity"; }
  void reset() override { sum_ = count_ = torch::Tensor(); }
  // output: logits [batch, time, vocabulary], or, 0-dim, the mean loss of the batch's tokens.
  void update(const torch::Tensor& output, const torch::Tensor& targets) override;
  torch::Tensor value() const override { return mean().exp(); }
  torch::Tensor mean() const { return sum_ / count_; }
  std::optional<vernier::State> state_dict() const override;
  void add(const vernier::State& state) override;

 private:
  torch::Tensor sum_, count_;
};

}  // namespace language
