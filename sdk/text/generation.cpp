// Sources of the rules: NoRepeatNGramLogitsProcessor, MinLengthLogitsProcessor, MinNewTokensLengthLogitsProcessor,
// RepetitionPenaltyLogitsProcessor, TemperatureLogitsWarper, TopKLogitsWarper, TopPLogitsWarper and MinPLogitsWarper of
// Hugging Face's transformers 5 (generation/logits_process.py).
#include <ATen/ops/empty.h>
#include <ATen/ops/tensor.h>
#include <ATen/ops/where.h>
#include <ATen/ops/zeros.h>
#include <torch/types.h>
#include <vernier/error.h>
#include <vernier/text/generation.h>

#include <algorithm>
#include <limits>
#include <numeric>

#include "text/generation_rules.h"

namespace vernier {

namespace {

constexpr double coldest = 1e-6;  // below, the quotient of a logit may overflow
constexpr std::int64_t first_room = 64;
constexpr std::int64_t piece_size = 512;  // tokens of a prompt in one pass
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

// Every token that would make a sequence of n tokens that the text has already.
torch::Tensor without_repeats(torch::Tensor scores, const torch::Tensor& text, std::int64_t n) {
  const auto* tokens = text.const_data_ptr<std::int64_t>();
  const auto size = text.size(0), last = size - (n - 1);  // last: start of the n-gram that the next token ends
  if (last < 0) return scores;
  scores = scores.clone();
  for (std::int64_t i = 0; i + n <= size; ++i) {
    if (std::equal(tokens + i, tokens + i + n - 1, tokens + last)) scores[tokens[i + n - 1]] = -infinity;
  }
  return scores;
}

}  // namespace

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

torch::Tensor without_ends(const torch::Tensor& scores, const GenerationOptions& options, std::int64_t made,
                           std::int64_t size) {
  if (made >= options.min_tokens && size >= options.min_length) return scores;
  auto rest = scores.clone();
  for (const auto end : options.ends) {
    if (end >= 0 && end < rest.size(0)) rest[end] = -infinity;
  }
  return rest;
}

LanguageModel::~LanguageModel() = default;
std::string LanguageModel::model_folder() const {
  return "";
}
std::vector<std::string> LanguageModel::end_words() const {
  return {};
}
std::string LanguageModel::chat_template() const {
  return "";
}

std::int64_t LanguageModel::context() const {
  return longest();
}

std::int64_t LanguageModel::cacheable() const {
  return longest();
}

std::pair<torch::Tensor, torch::Tensor> KeyValueCache::add(std::int64_t layer, const torch::Tensor& keys,
                                                           const torch::Tensor& values) {
  if (goes_on_ && !goes_on_()) throw Stopped();
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

torch::Tensor KeyValueCache::begins(torch::Device device) const {
  const bool is_ragged = std::ranges::any_of(begins_, [](auto begin) { return begin > 0; });
  return is_ragged ? at::tensor(begins_, torch::kInt64).to(device) : torch::Tensor();
}

void KeyValueCache::keep(const std::vector<std::int64_t>& rows) {
  if (rows.empty()) return clear();
  std::vector<std::int64_t> begins, all(static_cast<std::size_t>(this->rows()));
  std::iota(all.begin(), all.end(), 0);
  for (const auto row : rows) begins.push_back(begins_.empty() ? 0 : begins_.at(static_cast<std::size_t>(row)));
  const auto unused = *std::ranges::min_element(begins);
  if (rows == all && unused == 0) return;
  for (auto& begin : begins) begin -= unused;
  for (auto& [keys, values] : layers_) {
    const auto index = at::tensor(rows, torch::kInt64).to(keys.device());
    for (auto* part : {&keys, &values}) {
      *part = part->narrow(2, unused, length_ - unused).index_select(0, index);
    }
  }
  begins_ = std::move(begins);
  length_ -= unused;
}

void KeyValueCache::join(const KeyValueCache& other) {
  if (length_ == 0) {
    *this = other;
    return;
  }
  const auto whole = std::max(length_, other.length_);
  const auto joined = [&](const torch::Tensor& mine, const torch::Tensor& theirs) {
    auto both =
        at::zeros({mine.size(0) + theirs.size(0), mine.size(1), std::max(whole + whole / 2, first_room), mine.size(3)},
                  mine.options());
    both.narrow(0, 0, mine.size(0)).narrow(2, whole - length_, length_).copy_(mine.narrow(2, 0, length_));
    both.narrow(0, mine.size(0), theirs.size(0))
        .narrow(2, whole - other.length_, other.length_)
        .copy_(theirs.narrow(2, 0, other.length_));
    return both;
  };
  const auto add_begins = [&](const KeyValueCache& from, std::vector<std::int64_t>& to) {
    for (std::size_t row = 0; row < static_cast<std::size_t>(from.rows()); ++row) {
      to.push_back((from.begins_.empty() ? 0 : from.begins_.at(row)) + whole - from.length_);
    }
  };
  std::vector<std::int64_t> begins;
  add_begins(*this, begins);
  add_begins(other, begins);
  for (std::size_t i = 0; i < layers_.size(); ++i) {
    layers_[i] = {joined(layers_[i].keys, other.layers_[i].keys), joined(layers_[i].values, other.layers_[i].values)};
  }
  begins_ = std::move(begins);
  length_ = whole;
}

void KeyValueCache::clear() {
  layers_.clear();
  begins_.clear();
  length_ = 0;
}

torch::Tensor sampling_scores(const torch::Tensor& logits, const torch::Tensor& text, const Sampling& sampling) {
  auto scores = logits.to(torch::kCPU, torch::kFloat32);
  const auto seen = text.to(torch::kCPU, torch::kInt64).contiguous();
  if (sampling.repetition_penalty != 1) scores = penalised(scores, seen, sampling.repetition_penalty);
  if (sampling.no_repeat_ngram > 0) scores = without_repeats(scores, seen, sampling.no_repeat_ngram);
  if (sampling.temperature == 0) return scores;
  scores = scores / std::max(sampling.temperature, coldest);
  if (sampling.top_k > 0) scores = best_k(scores, sampling.top_k);
  if (sampling.top_p < 1) scores = nucleus(scores, sampling.top_p);
  if (sampling.min_p > 0) scores = above_share(scores, sampling.min_p);
  return scores;
}

Generation::Generation(LanguageModel& model, GenerationOptions options, torch::Device device)
    : model_(model), options_(std::move(options)), device_(device) {}

void Generation::add(const std::vector<TokenId>& prompt, const at::Generator& generator, std::vector<Text> texts,
                     const std::function<bool()>& goes_on) {
  require_readable(model_, prompt, options_.slides);
  const torch::NoGradGuard no_grad;
  Row row{.tokens = {prompt.begin(), prompt.end()},
          .prompt = std::ssize(prompt),
          .generator = generator,
          .text = {},
          .logits = {},
          .is_cached = true};
  row.is_cached = fits_cache(row);
  if (row.is_cached) {
    KeyValueCache cache;
    cache.ask(goes_on);
    const auto tokens = at::tensor(row.tokens, torch::kInt64).unsqueeze(0).to(device_);
    try {
      for (const auto& piece : tokens.split(piece_size, 1)) row.logits = model_.next_logits(piece, &cache)[0];
    } catch (const KeyValueCache::Stopped&) {
      return;
    }
    cache.ask({});
    cache.keep(std::vector<std::int64_t>(texts.size(), 0));
    cache_.join(cache);
  } else {
    row.logits = logits_without_cache(row);
  }
  row.logits = row.logits.to(torch::kCPU, torch::kFloat32);
  for (auto& text : texts) {
    rows_.push_back(row);
    rows_.back().text = std::move(text);
  }
}

bool Generation::fits_cache(const Row& row) const {
  const auto most = model_.cacheable();
  return options_.uses_cache && row.is_cached && (most == 0 || std::ssize(row.tokens) <= most);
}

torch::Tensor Generation::logits_without_cache(const Row& row) const {
  const auto size = std::ssize(row.tokens), longest = model_.longest();
  const auto seen = longest == 0 ? size : std::min(size, longest);
  const auto tokens = at::tensor(row.tokens, torch::kInt64).slice(0, size - seen).unsqueeze(0).to(device_);
  return model_.next_logits(tokens, nullptr)[0];
}

// Draws the next token of a text. Returns false if the text has ended.
bool Generation::goes_on(Row& row) {
  const auto end = [&](GenerationEnd reason) {
    row.text.end(reason);
    return false;
  };
  if (!row.logits.isfinite().all().item<bool>()) return end(GenerationEnd::not_finite);
  const auto made = std::ssize(row.tokens) - row.prompt;
  const auto allowed = without_ends(row.logits, options_, made, std::ssize(row.tokens));
  const auto scores = sampling_scores(allowed, at::tensor(row.tokens, torch::kInt64), options_.sampling);
  const auto next = options_.sampling.temperature == 0
                        ? scores.argmax().item<std::int64_t>()
                        : scores.softmax(0).unsqueeze(0).multinomial(1, false, row.generator).item<std::int64_t>();
  GeneratedToken token{.id = static_cast<TokenId>(next)};
  if (std::ranges::find(options_.ends, token.id) != options_.ends.end()) return end(GenerationEnd::end_token);
  if (options_.likeliest >= 0) {
    const auto all = row.logits.log_softmax(0);
    token.log_probability = all[next].item<double>();
    const auto [values, ids] = all.topk(std::min(options_.likeliest, all.size(0)));
    for (std::int64_t i = 0; i < ids.size(0); ++i) {
      token.likeliest.emplace_back(ids[i].item<TokenId>(), values[i].item<double>());
    }
  }
  if (!row.text.take(token)) return end(GenerationEnd::caller);
  row.tokens.push_back(next);
  if (made + 1 == options_.max_tokens) return end(GenerationEnd::max_tokens);
  const auto longest = model_.longest();
  const bool is_over = !options_.slides && longest > 0 && std::ssize(row.tokens) > longest;
  return !is_over || end(GenerationEnd::longest);
}

void Generation::step() {
  const torch::NoGradGuard no_grad;
  std::vector<std::int64_t> cached;  // rows of the cache that stay
  std::vector<Row> left;
  std::int64_t place = 0;
  for (auto& row : rows_) {
    const bool was_cached = row.is_cached, stays = goes_on(row);
    row.is_cached = stays && fits_cache(row);
    if (row.is_cached) cached.push_back(place);
    if (was_cached) ++place;
    if (stays) left.push_back(std::move(row));
  }
  rows_ = std::move(left);
  cache_.keep(cached);
  read_new_tokens();
}

void Generation::read_new_tokens() {
  std::vector<std::int64_t> tokens;
  for (const auto& row : rows_) {
    if (row.is_cached) tokens.push_back(row.tokens.back());
  }
  torch::Tensor logits;
  if (!tokens.empty()) {
    logits = model_.next_logits(at::tensor(tokens, torch::kInt64).unsqueeze(1).to(device_), &cache_)
                 .to(torch::kCPU, torch::kFloat32);
  }
  std::int64_t place = 0;
  for (auto& row : rows_) {
    row.logits = row.is_cached ? logits[place++] : logits_without_cache(row).to(torch::kCPU, torch::kFloat32);
  }
}

GenerationEnd generate(LanguageModel& model, const std::vector<TokenId>& text, const GenerationOptions& options,
                       torch::Device device, const at::Generator& generator, const std::function<bool(TokenId)>& take) {
  auto end = GenerationEnd::caller;
  Generation one(model, options, device);
  one.add(text, generator,
          {{[&](const GeneratedToken& token) { return take(token.id); }, [&](GenerationEnd reason) { end = reason; }}});
  while (one.size() > 0) one.step();
  return end;
}

}  // namespace vernier
