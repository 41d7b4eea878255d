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
#include <vernier/state.h>
#include <vernier/tensor.h>
#include <vernier/tokenizer.h>

#include <cstdint>
#include <functional>
#include <string>
#include <utility>
#include <vector>

namespace vernier {

// The keys and values of a text, for each layer of a model. A forward pass adds those of the tokens that come next.
class VERNIER_API KeyValueCache {
 public:
  std::int64_t length() const { return length_; }  // tokens before this forward pass
  // Called once by each layer in a forward pass, with keys and values [batch, heads, time, width] of the new tokens, in
  // any one floating-point dtype. Returns those of the whole text, as views of the cache.
  std::pair<torch::Tensor, torch::Tensor> add(std::int64_t layer, const torch::Tensor& keys,
                                              const torch::Tensor& values);
  void end_pass(std::int64_t time) { length_ += time; }  // called after the last layer
  void clear();

 private:
  struct Layer {
    torch::Tensor keys, values;  // [batch, heads, room, width]
  };
  std::vector<Layer> layers_;
  std::int64_t length_ = 0;
};

// A task whose model continues texts derives from it beside Task, for `vernier generate`. Main thread only, after
// Task::prepare.
class VERNIER_API LanguageModel {
 public:
  virtual ~LanguageModel();
  // Called before Task::prepare to use a trained model, with what the task has saved, unless it is a SupervisedTask.
  // reads_data: to evaluate on data; else no file of the configuration is opened.
  virtual void use_trained(const State& saved, bool reads_data);
  virtual std::int64_t vocabulary() const = 0;
  virtual std::int64_t longest() const = 0;  // tokens that the model has positions for; 0: any number
  // The most tokens up to which keys and values stay what they are while a text grows; 0: any. By default longest().
  virtual std::int64_t cacheable() const;
  virtual std::string tokenizer_folder() const = 0;  // "": there is none
  virtual std::string model_folder() const;          // where generation_config.json may be; by default "", nowhere
  // Tokens that end a completion, besides those that the folders name: of a chat, "<|im_end|>". By default none.
  virtual std::vector<std::string> end_words() const;
  virtual bool reads_bytes() const = 0;  // a token is a byte
  // Returns the logits [vocabulary] of the token after a text. tokens: int64 [time] on the model's device, at least
  // one; with a cache those that come after cache->length() others. Gradients are off.
  virtual torch::Tensor next_logits(const torch::Tensor& tokens, KeyValueCache* cache) = 0;
};

// How the next token is drawn. The rules apply in this order, as in Hugging Face's transformers 5, whose scores and
// tokens these are.
struct Sampling {
  double repetition_penalty = 1.0;  // divides positive logits of tokens that the text has, multiplies negative ones
  double temperature = 1.0;         // 0: always the likeliest token, and none of the rules below
  std::int64_t top_k = 0;           // draws among the k likeliest, and those as likely as the last of them; 0: all
  double top_p = 1.0;               // among the fewest tokens whose probabilities sum up to it
  double min_p = 0.0;               // among tokens with at least this share of the largest probability
};

// The scores of all tokens, whose softmax() are the probabilities; -inf for those left out. logits: [vocabulary]; text:
// int64 [time], the prompt too. Returns float32 on the CPU.
VERNIER_API torch::Tensor sampling_scores(const torch::Tensor& logits, const torch::Tensor& text,
                                          const Sampling& sampling);

struct GenerationOptions {
  Sampling sampling = {};
  std::int64_t max_tokens = 100;
  std::vector<TokenId> ends = {};  // tokens that end the text; they are not passed on
  bool uses_cache = true;          // false: computes the whole text for each token
  bool slides = false;  // beyond longest() each token follows from the last longest() ones, without the cache
};

enum class GenerationEnd { max_tokens, end_token, longest, caller, not_finite };

// Continues a text. Passes each token to take(), which returns false to end. All random numbers come from the
// generator, which is on the CPU. Returns why it ended: `longest` where the text is longer than the model can read,
// `not_finite` where the model gives no finite logits. Throws Error if the text is empty, is too long already, or has a
// token that is not in the vocabulary.
VERNIER_API GenerationEnd generate(LanguageModel& model, std::vector<TokenId> text, const GenerationOptions& options,
                                   torch::Device device, at::Generator generator,
                                   const std::function<bool(TokenId)>& take);

}  // namespace vernier
