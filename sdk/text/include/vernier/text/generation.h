// Texts from a language model: token by token, with the keys and values of attention kept between them.
//
//   vernier::GenerationOptions options;
//   options.sampling = {.temperature = 0.8, .top_k = 50};
//   auto generator = at::make_generator<at::CPUGeneratorImpl>(/*seed=*/1);
//   vernier::generate(model, tokenizer->encode("Once"), options, torch::kCPU, generator, [&](vernier::TokenId token) {
//     text.push_back(token);
//     return true;
//   });
#pragma once

#include <ATen/core/Generator.h>
#include <vernier/abi.h>
#include <vernier/data/predictor.h>
#include <vernier/state.h>
#include <vernier/tensor.h>
#include <vernier/text/tokenizer.h>

#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <utility>
#include <vector>

namespace vernier {

// The keys and values of some texts, for each layer of a model. A forward pass adds those of the tokens that come next.
// Each text is a row, and all end in the same column. A shorter one begins behind the first column.
class VERNIER_API KeyValueCache {
 public:
  std::int64_t length() const { return length_; }  // columns before this forward pass
  // The column in which each text begins, int64 [batch]; undefined if all begin in the first.
  torch::Tensor begins(torch::Device device) const;
  // Called once by each layer in a forward pass, with keys and values [batch, heads, time, width] of the new tokens, in
  // any one floating-point dtype. Returns those of the whole text, as views of the cache. Throws Stopped, which ends
  // the pass, if the function that ask() was given returns false.
  std::pair<torch::Tensor, torch::Tensor> add(std::int64_t layer, const torch::Tensor& keys,
                                              const torch::Tensor& values);
  struct Stopped {};
  void ask(std::function<bool()> goes_on) { goes_on_ = std::move(goes_on); }  // asked by add(), at each layer
  void end_pass(std::int64_t time) { length_ += time; }                       // called after the last layer
  // Keeps these rows in this order; a row may come several times. Columns that none of them uses go.
  void keep(const std::vector<std::int64_t>& rows);
  void join(const KeyValueCache& other);  // adds the rows of another cache of the same model
  void clear();

 private:
  struct Layer {
    torch::Tensor keys, values;  // [batch, heads, room, width]
  };
  std::int64_t rows() const { return layers_.empty() ? 1 : layers_.front().keys.size(0); }
  std::vector<Layer> layers_;
  std::vector<std::int64_t> begins_;  // first place of each row; empty: all 0
  std::int64_t length_ = 0;
  std::function<bool()> goes_on_;
};

// A task whose model continues texts derives from it beside Task, for `vernier generate`. Main thread only, after
// Task::prepare.
class VERNIER_API LanguageModel : public TrainedModel {
 public:
  ~LanguageModel() override;
  virtual std::int64_t vocabulary() const = 0;
  virtual std::int64_t longest() const = 0;  // tokens that the model has positions for; 0: any number
  virtual std::int64_t context() const;      // tokens of a text that it was made for; by default longest()
  // The most tokens up to which keys and values stay what they are while a text grows; 0: any. By default longest().
  virtual std::int64_t cacheable() const;
  virtual std::string tokenizer_folder() const = 0;  // "": there is none
  virtual std::string model_folder() const;          // folder that may have generation_config.json; by default "": none
  // Tokens that end a completion, besides those that the folders name: of a chat, "<|im_end|>". By default none.
  virtual std::vector<std::string> end_words() const;
  // The Jinja template of the chats that it was trained on, which goes before a folder's own. By default "", none.
  virtual std::string chat_template() const;
  virtual bool reads_bytes() const = 0;  // a token is a byte
  // Returns the logits [batch, vocabulary] of the token after each text. tokens: int64 [batch, time] on the model's
  // device, one column at least; with a cache those that come after its texts. Gradients are off.
  virtual torch::Tensor next_logits(const torch::Tensor& tokens, KeyValueCache* cache) = 0;
};

// How the next token is drawn. The rules apply in this order, as in Hugging Face's transformers 5, whose scores and
// tokens these are.
struct Sampling {
  double repetition_penalty = 1.0;   // divides positive logits of tokens that the text has, multiplies negative ones
  std::int64_t no_repeat_ngram = 0;  // no sequence of so many tokens comes twice; 0: any may
  double temperature = 1.0;          // 0: always the likeliest token, and none of the rules below
  std::int64_t top_k = 0;            // draws among the k likeliest, and those as likely as the last of them; 0: all
  double top_p = 1.0;                // among the fewest tokens whose probabilities sum up to it
  double min_p = 0.0;                // among tokens with at least this share of the largest probability
};

// The scores of all tokens, whose softmax() are the probabilities; -inf for those left out. logits: [vocabulary]; text:
// int64 [time], the prompt too. Returns float32 on the CPU.
VERNIER_API torch::Tensor sampling_scores(const torch::Tensor& logits, const torch::Tensor& text,
                                          const Sampling& sampling);

struct GenerationOptions {
  Sampling sampling = {};
  std::int64_t max_tokens = 100;
  std::int64_t min_tokens = 0;     // before so many new tokens none of `ends` is drawn
  std::int64_t min_length = 0;     // the same, with the prompt's tokens
  std::vector<TokenId> ends = {};  // tokens that end the text; they are not passed on
  std::int64_t likeliest = -1;     // with each token the log-probabilities of so many; below 0: of none, nor its own
  bool uses_cache = true;          // false: computes the whole text for each token
  bool slides = false;  // beyond longest() each token follows from the last longest() ones, without the cache
};

// `longest`: the text is longer than the model can read. `not_finite`: the model gives no finite logits.
enum class GenerationEnd { max_tokens, end_token, longest, caller, not_finite };

// Log-probabilities are those of the model, before any rule of Sampling.
struct GeneratedToken {
  TokenId id = 0;
  double log_probability = 0;
  std::vector<std::pair<TokenId, double>> likeliest = {};  // the likeliest first
};

// Throws Error if a text is not what the model can continue: if it is empty, is too long, or has a token that is not in
// the vocabulary. slides: as in GenerationOptions.
VERNIER_API void require_readable(const LanguageModel& model, const std::vector<TokenId>& text, bool slides);

// Continues several texts at a time, with one forward pass for a token of each. A text that ends makes room for another
// one. In exact arithmetic no text depends on the others; kernels may round otherwise for other numbers of rows.
//
//   vernier::Generation texts(model, options, torch::kCPU);
//   for (const auto& prompt : prompts) texts.add(prompt, generator, {{take, end}});
//   while (texts.size() > 0) texts.step();
class VERNIER_API Generation {
 public:
  struct Text {
    std::function<bool(const GeneratedToken&)> take;  // called with each token; returns false to end
    std::function<void(GenerationEnd)> end;           // called once
  };
  Generation(LanguageModel& model, GenerationOptions options, torch::Device device);
  // Begins texts behind one prompt. All random numbers come from the generator, which is on the CPU; the texts draw in
  // turn. A long prompt is read in pieces; goes_on is asked at each layer, and where it returns false, no text begins.
  // Throws as require_readable().
  void add(const std::vector<TokenId>& prompt, const at::Generator& generator, std::vector<Text> texts,
           const std::function<bool()>& goes_on = {});
  std::size_t size() const { return rows_.size(); }  // number of texts that have not ended
  void step();

 private:
  struct Row {
    std::vector<std::int64_t> tokens;
    std::int64_t prompt = 0;  // number of the prompt's tokens
    at::Generator generator;
    Text text;
    torch::Tensor logits;  // logits of the next token
    bool is_cached = true;
  };
  torch::Tensor logits_without_cache(const Row& row) const;
  bool fits_cache(const Row& row) const;
  bool goes_on(Row& row);
  void read_new_tokens();

  LanguageModel& model_;
  GenerationOptions options_;
  torch::Device device_;
  std::vector<Row> rows_;  // cached rows are in the order of the cache
  KeyValueCache cache_;
};

// Continues one text. Passes each token to take(), which returns false to end, and returns why the text ended. Throws
// as Generation::add().
VERNIER_API GenerationEnd generate(LanguageModel& model, const std::vector<TokenId>& text,
                                   const GenerationOptions& options, torch::Device device,
                                   const at::Generator& generator, const std::function<bool(TokenId)>& take);

// Beam search as transformers has it: the likeliest texts instead of the likeliest tokens.
struct BeamOptions {
  enum class Early { no, yes, never };
  std::int64_t beams = 4;
  double length_penalty = 1.0;  // the sum of log-probabilities is divided by the length to this power
  Early early_stopping = Early::no;
  std::function<bool(std::span<const TokenId>)> stops =
      {};                              // true where a text behind the prompt ends, with a stop word
  std::function<bool()> goes_on = {};  // asked before each token and at each layer; false: ends with nothing
};

struct BeamText {
  std::vector<TokenId> tokens;  // behind the prompt, without a token of `ends`
  double score = 0;
  GenerationEnd end = GenerationEnd::max_tokens;
};

// Returns the best texts, at most as many as beams, the best first. Of options.sampling the repetition penalty and
// no_repeat_ngram count alone, and options.slides and options.likeliest must not be set. Throws as Generation::add().
VERNIER_API std::vector<BeamText> search_beams(LanguageModel& model, const std::vector<TokenId>& prompt,
                                               const GenerationOptions& options, const BeamOptions& beams,
                                               torch::Device device);

}  // namespace vernier
