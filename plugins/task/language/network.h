// Shared by the tasks of language models: their networks.
#pragma once

#include <torch/nn/module.h>
#include <torch/types.h>
#include <vernier/text/generation.h>

#include <cstdint>
#include <functional>
#include <optional>
#include <string>

namespace language {

// The function between the two products of an MLP.
using Activation = torch::Tensor (*)(const torch::Tensor&);
torch::Tensor gelu_by_tanh(const torch::Tensor& x);

// The input of a network: the tokens of texts.
struct Texts {
  torch::Tensor tokens;                     // int64 [batch, time]
  torch::Tensor positions = {};             // int64 [batch, time]: the place of each in its text; undefined: the column
  torch::Tensor segments = {};              // int64 [batch, time]: the number of its text; undefined: a row is one text
  vernier::KeyValueCache* cache = nullptr;  // has the tokens before these; segments are undefined then
  std::int64_t longest = 0;                 // tokens of the longest text, where rows are filled up; 0: all columns
  std::int64_t past() const { return cache == nullptr ? 0 : cache->length(); }
  // The first column of each text, int64 [batch]; undefined if all begin in the first column.
  torch::Tensor begins() const { return cache == nullptr ? torch::Tensor() : cache->begins(tokens.device()); }
};

// The tokens that attention may look at.
struct AttentionMask {
  // window: a token sees itself and window - 1 before it; 0: all before it.
  explicit AttentionMask(const Texts& texts, std::int64_t window = 0);
  torch::Tensor allowed;   // bool [batch or 1, 1, time, past + time]; undefined: what is_causal says
  bool is_causal = false;  // a token sees itself and those before it; else it sees all
  vernier::KeyValueCache* cache;
};

// Attention of queries [batch, heads, time, width] to keys and values [batch, key_heads, time, width] of these tokens
// and of those in the cache. key_heads divides heads. scale: by default the inverse root of the width. cap: scores are
// cap * tanh(score / cap), as in Gemma 2; 0: they stay as they are.
torch::Tensor attend(const torch::Tensor& query, torch::Tensor key, torch::Tensor value, const AttentionMask& mask,
                     std::int64_t layer, double dropout, std::optional<double> scale = std::nullopt, double cap = 0);

// cap * tanh(x / cap).
torch::Tensor capped(const torch::Tensor& x, double cap);

// A causal language model.
class Network : public torch::nn::Module {
 public:
  using Part = std::function<torch::Tensor(const torch::Tensor&)>;

  // Logits [batch, time, vocabulary].
  torch::Tensor forward(const Texts& texts);
  torch::Tensor forward(const torch::Tensor& tokens) { return forward(Texts{tokens}); }
  // The mean loss of targets, int64 [batch, time], without all logits at once; -100: a token that is not learned.
  torch::Tensor loss(const Texts& texts, const torch::Tensor& targets, double label_smoothing = 0);
  // Calls `loss` with the sum of the losses of each text, [batch], and returns what it returned: the same without all
  // logits at once. With gradients on, that is 0-dim and differentiable.
  using OfSums = std::function<torch::Tensor(const torch::Tensor& sums)>;
  torch::Tensor loss_of_sums(const Texts& texts, const torch::Tensor& targets, const OfSums& loss);
  // Logits [batch, vocabulary] of the token after each text, and of no other. Positions are those of the cache.
  torch::Tensor next_logits(Texts texts);
  virtual std::int64_t vocabulary() const = 0;
  std::int64_t width() const { return head().size(1); }
  virtual std::int64_t longest() const = 0;                   // tokens of a sequence; 0: there is no limit
  virtual std::int64_t context() const { return longest(); }  // tokens of a sequence that it was made for
  // The most tokens of a text whose first ones have the same keys as in a longer text; 0: there is no limit.
  virtual std::int64_t cacheable() const { return longest(); }
  virtual bool is_tied() const = 0;  // the head is the token embedding
  // Takes the head for tokens away, for a network that uses features() alone.
  void drop_head();
  bool has_head() const { return has_head_; }

  // Lets `runner` call each block on its input, to save memory. By default forward() does.
  using Runner = std::function<torch::Tensor(const Part& block, const torch::Tensor& x)>;
  void run_blocks_by(Runner runner) { runner_ = std::move(runner); }

  // The last layer's output [batch, time, width] after the last norm.
  virtual torch::Tensor features(const Texts& texts) = 0;

 protected:
  virtual void release_head() = 0;                // frees it, if it is not the token embedding
  virtual const torch::Tensor& head() const = 0;  // its weight [vocabulary, width]
  // The logits of such vectors. has_linear_logits: they are the product with the head, and no more.
  virtual torch::Tensor logits(const torch::Tensor& features) const;
  virtual bool has_linear_logits() const { return true; }
  torch::Tensor run(const Part& block, const torch::Tensor& x) const { return runner_ ? runner_(block, x) : block(x); }

 private:
  Runner runner_;
  bool has_head_ = true;
};

// Gives a module a part `name` that holds one parameter, weight [rows, columns]: an embedding, or a head without bias.
torch::Tensor add_matrix(torch::nn::Module& module, const std::string& name, std::int64_t rows, std::int64_t columns);

// Draws every matrix of a new model from a normal distribution, by the seed alone. Norms and biases stay as they are.
// deviation: of the parameter of this name.
void draw_weights(torch::nn::Module& model, std::uint64_t seed,
                  const std::function<double(const std::string& name)>& deviation);

}  // namespace language
