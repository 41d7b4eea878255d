// Sources of the rules: RepetitionPenaltyLogitsProcessor, TemperatureLogitsWarper, TopKLogitsWarper, TopPLogitsWarper
// and MinPLogitsWarper of Hugging Face's transformers 5 (generation/logits_process.py).
#include <ATen/ops/empty.h>
#include <ATen/ops/tensor.h>
#include <ATen/ops/where.h>
#include <torch/types.h>
#include <vernier/error.h>
#include <vernier/generation.h>

#include <algorithm>
#include <limits>
#include <optional>

namespace vernier {

namespace {

constexpr double coldest = 1e-6;  // below, the quotient of a logit may overflow
constexpr std::int64_t first_room = 64;
constexpr double infinity = std::numeric_limits<double>::infinity();

// A larger tensor that begins with the first `length` positions.
torch::Tensor with_room(const torch::Tensor& old, const torch::Tensor& like, std::int64_t length, std::int64_t room) {
  auto larger = at::empty({like.size(0), like.size(1), room, like.size(3)}, like.options());
  if (length > 0) larger.narrow(2, 0, length).copy_(old.narrow(2, 0, length));
  return larger;
}

torch::Tensor penalised(const torch::Tensor& scores, const torch::Tensor& text, double penalty) {
  const auto seen = scores.gather(0, text);
  return scores.scatter(0, text, at::where(seen < 0, seen * penalty, seen / penalty));
}

torch::Tensor best_k(const torch::Tensor& scores, std::int64_t k) {
  const auto least = std::get<0>(scores.topk(std::min(k, scores.size(0)))).select(0, -1);
  return scores.masked_fill(scores < least, -infinity);
}

torch::Tensor nucleus(const torch::Tensor& scores, double top_p) {
  const auto [sorted, order] = scores.sort(0, /*descending=*/false);
  auto is_out = sorted.softmax(0).cumsum(0) <= 1 - top_p;
  is_out.select(0, -1).fill_(false);
  return scores.masked_fill(is_out.scatter(0, order, is_out), -infinity);
}

torch::Tensor above_share(const torch::Tensor& scores, double min_p) {
  const auto probabilities = scores.softmax(0);
  return scores.masked_fill(probabilities < min_p * probabilities.max(), -infinity);
}

// Nothing where the logits are not finite: a diverged network has no next token.
std::optional<std::int64_t> drawn(const torch::Tensor& logits, const torch::Tensor& text, const Sampling& sampling,
                                  const at::Generator& generator) {
  if (!logits.isfinite().all().item<bool>()) return std::nullopt;
  const auto scores = sampling_scores(logits, text, sampling);
  if (sampling.temperature == 0) return scores.argmax().item<std::int64_t>();
  return scores.softmax(0).unsqueeze(0).multinomial(1, false, generator).item<std::int64_t>();
}

void require_readable(const LanguageModel& model, const std::vector<TokenId>& text, bool slides) {
  if (text.empty()) refuse("the prompt is empty, and the model needs a token to continue; give a word at least");
  for (const auto token : text) {
    if (token >= 0 && token < model.vocabulary()) continue;
    refuse(c10::str("the prompt has the token ", token, ", and the model's vocabulary is 0 to ", model.vocabulary() - 1,
                    "; is it another model's tokenizer?"));
  }
  const auto size = static_cast<std::int64_t>(text.size());
  if (slides || model.longest() == 0 || size <= model.longest()) return;
  refuse(c10::str("the prompt has ", size, " tokens, and the model has positions for ", model.longest(),
                  "; shorten it, or let the model see the last ones alone (--slide)"));
}

// The new tokens of a text, through a cache as long as it stays valid.
class Reader {
 public:
  Reader(LanguageModel& model, const GenerationOptions& options, torch::Device device)
      : model_(model), uses_cache_(options.uses_cache), device_(device) {}

  torch::Tensor logits_after(const torch::Tensor& text) {
    const auto size = text.size(0), most = model_.cacheable(), longest = model_.longest();
    if (uses_cache_ && (most == 0 || size <= most)) {
      return model_.next_logits(text.slice(0, cache_.length()).to(device_), &cache_);
    }
    cache_.clear();
    const auto seen = longest == 0 ? size : std::min(size, longest);
    return model_.next_logits(text.slice(0, size - seen).to(device_), nullptr);
  }

 private:
  LanguageModel& model_;
  bool uses_cache_;
  torch::Device device_;
  KeyValueCache cache_;
};

}  // namespace

LanguageModel::~LanguageModel() = default;
void LanguageModel::use_trained(const State&, bool) {}
std::string LanguageModel::model_folder() const {
  return "";
}
std::vector<std::string> LanguageModel::end_words() const {
  return {};
}

std::int64_t LanguageModel::cacheable() const {
  return longest();
}

std::pair<torch::Tensor, torch::Tensor> KeyValueCache::add(std::int64_t layer, const torch::Tensor& keys,
                                                           const torch::Tensor& values) {
  const auto place = static_cast<std::size_t>(layer);
  if (layers_.size() <= place) layers_.resize(place + 1);
  auto& own = layers_[place];
  const auto time = keys.size(2), whole = length_ + time;
  if (!own.keys.defined() || own.keys.size(2) < whole) {
    const auto room = std::max(2 * whole, first_room);
    own.keys = with_room(own.keys, keys, length_, room);
    own.values = with_room(own.values, values, length_, room);
  }
  own.keys.narrow(2, length_, time).copy_(keys);
  own.values.narrow(2, length_, time).copy_(values);
  return {own.keys.narrow(2, 0, whole), own.values.narrow(2, 0, whole)};
}

void KeyValueCache::clear() {
  layers_.clear();
  length_ = 0;
}

torch::Tensor sampling_scores(const torch::Tensor& logits, const torch::Tensor& text, const Sampling& sampling) {
  auto scores = logits.to(torch::kCPU, torch::kFloat32);
  if (sampling.repetition_penalty != 1) {
    scores = penalised(scores, text.to(torch::kCPU, torch::kInt64), sampling.repetition_penalty);
  }
  if (sampling.temperature == 0) return scores;
  scores = scores / std::max(sampling.temperature, coldest);
  if (sampling.top_k > 0) scores = best_k(scores, sampling.top_k);
  if (sampling.top_p < 1) scores = nucleus(scores, sampling.top_p);
  if (sampling.min_p > 0) scores = above_share(scores, sampling.min_p);
  return scores;
}

GenerationEnd generate(LanguageModel& model, std::vector<TokenId> text, const GenerationOptions& options,
                       torch::Device device, at::Generator generator, const std::function<bool(TokenId)>& take) {
  require_readable(model, text, options.slides);
  const torch::NoGradGuard no_grad;
  std::vector<std::int64_t> all(text.begin(), text.end());
  Reader reader(model, options, device);
  for (std::int64_t i = 0; i < options.max_tokens; ++i) {
    if (!options.slides && model.longest() > 0 && std::ssize(all) > model.longest()) return GenerationEnd::longest;
    const auto seen = at::tensor(all, torch::kInt64);
    const auto logits = reader.logits_after(seen).to(torch::kCPU, torch::kFloat32);
    const auto next = drawn(logits, seen, options.sampling, generator);
    if (!next) return GenerationEnd::not_finite;
    const auto token = static_cast<TokenId>(*next);
    if (std::ranges::find(options.ends, token) != options.ends.end()) return GenerationEnd::end_token;
    if (!take(token)) return GenerationEnd::caller;
    all.push_back(*next);
  }
  return GenerationEnd::max_tokens;
}

}  // namespace vernier
