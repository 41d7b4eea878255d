// Source: GenerationMixin._beam_search of Hugging Face's transformers 5 (generation/utils.py), whose texts these are.
// Scores are float32 tensors, as there.
#include <ATen/ops/cat.h>
#include <ATen/ops/full.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/tensor.h>
#include <ATen/ops/where.h>
#include <torch/types.h>
#include <vernier/error.h>
#include <vernier/text/generation.h>

#include <algorithm>
#include <cmath>

#include "text/generation_rules.h"

namespace vernier {

namespace {

constexpr double never_chosen = -1e9;

struct Beam {
  std::vector<std::int64_t> tokens;  // with the prompt
  GenerationEnd end = GenerationEnd::caller;
};

class Search {
 public:
  Search(LanguageModel& model, const std::vector<TokenId>& prompt, const GenerationOptions& options,
         const BeamOptions& beams, torch::Device device)
      : model_(model),
        options_(options),
        beams_(beams),
        device_(device),
        prompt_(std::ssize(prompt)),
        most_(longest_text()),
        running_(static_cast<std::size_t>(beams.beams), Beam{{prompt.begin(), prompt.end()}}),
        finished_(running_),
        running_scores_(at::full({beams.beams}, never_chosen, torch::kFloat32)),
        finished_scores_(running_scores_.clone()),
        is_finished_(torch::zeros({beams.beams}, torch::kBool)) {
    running_scores_[0] = 0;
    cache_.ask(beams.goes_on);
  }

  std::vector<BeamText> run() try {
    while (can_go_on_) {
      if (beams_.goes_on && !beams_.goes_on()) return {};
      step();
    }
    return texts();
  } catch (const KeyValueCache::Stopped&) {
    return {};
  }

 private:
  std::int64_t longest_text() const {
    const auto most = prompt_ + options_.max_tokens;
    return model_.longest() == 0 ? most : std::min(most, model_.longest() + 1);
  }
  std::int64_t length() const { return std::ssize(running_.front().tokens); }

  // Log-probabilities [beams, vocabulary] of the next token behind each beam.
  torch::Tensor next_scores() {
    const auto most = model_.cacheable();
    const bool is_cached = options_.uses_cache && (most == 0 || length() <= most);
    if (!is_cached) cache_.clear();
    std::vector<torch::Tensor> rows;
    // Before the first token all beams are the same.
    for (std::size_t i = 0; i < (length() == prompt_ ? 1 : running_.size()); ++i) {
      rows.push_back(at::tensor(running_[i].tokens, torch::kInt64).slice(0, is_cached ? cache_.length() : 0));
    }
    auto logits =
        model_.next_logits(at::stack(rows).to(device_), is_cached ? &cache_ : nullptr).to(torch::kCPU, torch::kFloat32);
    if (!logits.isfinite().all().item<bool>()) return {};
    logits = logits.log_softmax(-1).expand({beams_.beams, logits.size(1)});
    std::vector<torch::Tensor> scores;
    Sampling rules = options_.sampling;
    rules.temperature = 0;
    for (std::int64_t i = 0; i < beams_.beams; ++i) {
      const auto& tokens = running_[static_cast<std::size_t>(i)].tokens;
      const auto allowed = without_ends(logits[i], options_, length() - prompt_, length());
      scores.push_back(sampling_scores(allowed, at::tensor(tokens, torch::kInt64), rules));
    }
    return at::stack(scores);
  }

  GenerationEnd end_of(const std::vector<std::int64_t>& tokens) const {
    if (std::ranges::find(options_.ends, static_cast<TokenId>(tokens.back())) != options_.ends.end()) {
      return GenerationEnd::end_token;
    }
    const std::vector<TokenId> text(tokens.begin() + prompt_, tokens.end());
    if (beams_.stops && beams_.stops(text)) return GenerationEnd::caller;
    return std::ssize(text) == options_.max_tokens ? GenerationEnd::max_tokens : GenerationEnd::longest;
  }

  void step() {
    const auto scores = next_scores();
    if (!scores.defined()) {
      finished_.assign(1, {running_.front().tokens, GenerationEnd::not_finite});
      is_finished_ = torch::ones({1}, torch::kBool);
      can_go_on_ = false;
      return;
    }
    const auto vocabulary = scores.size(1);
    const auto kept = std::max<std::int64_t>(2, 1 + std::ssize(options_.ends)) * beams_.beams;
    const auto [best, places] =
        (scores + running_scores_.unsqueeze(1)).flatten().topk(std::min(kept, beams_.beams * vocabulary));
    std::vector<Beam> candidates;
    std::vector<std::int64_t> from;
    auto ends = torch::zeros({best.size(0)}, torch::kBool);
    for (std::int64_t i = 0; i < best.size(0); ++i) {
      const auto place = places[i].item<std::int64_t>();
      from.push_back(place / vocabulary);
      candidates.push_back(running_[static_cast<std::size_t>(from.back())]);
      auto& [tokens, end] = candidates.back();
      tokens.push_back(place % vocabulary);
      end = end_of(tokens);
      const bool is_last = std::ssize(tokens) >= most_;
      ends[i] = is_last || end == GenerationEnd::end_token || end == GenerationEnd::caller;
    }
    finish(candidates, best, ends);
    run_on(candidates, from, best, ends);
    decide(ends);
  }

  // The best beams that have not ended go on.
  void run_on(const std::vector<Beam>& candidates, const std::vector<std::int64_t>& from, const torch::Tensor& best,
              const torch::Tensor& ends) {
    const auto [scores, chosen] = (best + ends.to(torch::kFloat32) * never_chosen).topk(beams_.beams);
    running_scores_ = scores;
    std::vector<std::int64_t> rows;
    for (std::int64_t i = 0; i < beams_.beams; ++i) {
      const auto place = static_cast<std::size_t>(chosen[i].item<std::int64_t>());
      running_[static_cast<std::size_t>(i)] = candidates[place];
      rows.push_back(length() - 1 == prompt_ ? 0 : from[place]);
    }
    if (cache_.length() > 0) cache_.keep(rows);
  }

  // The best candidates that end here compete with beams that ended before.
  void finish(const std::vector<Beam>& candidates, const torch::Tensor& best, const torch::Tensor& ends) {
    auto ends_now = ends.clone();
    ends_now.slice(0, beams_.beams).fill_(false);
    auto scores = best / std::pow(static_cast<double>(length() + 1 - prompt_), beams_.length_penalty);
    const bool is_full = beams_.early_stopping == BeamOptions::Early::yes && is_finished_.all().item<bool>();
    if (is_full || !can_improve_) scores = scores + never_chosen;
    scores = scores + ends_now.logical_not().to(torch::kFloat32) * never_chosen;
    auto all = finished_;
    all.insert(all.end(), candidates.begin(), candidates.end());
    const auto [merged, chosen] = at::cat({finished_scores_, scores}).topk(beams_.beams);
    finished_scores_ = merged;
    is_finished_ = at::cat({is_finished_, ends_now}).index_select(0, chosen);
    for (std::int64_t i = 0; i < beams_.beams; ++i) {
      finished_[static_cast<std::size_t>(i)] = all[static_cast<std::size_t>(chosen[i].item<std::int64_t>())];
    }
  }

  void decide(const torch::Tensor& ends) {
    const bool is_never = beams_.early_stopping == BeamOptions::Early::never;
    const auto longest = is_never && beams_.length_penalty > 0 ? most_ : length();
    const auto best = running_scores_[0] / std::pow(static_cast<double>(longest - prompt_), beams_.length_penalty);
    const auto worst = at::where(is_finished_, finished_scores_.min(), never_chosen);
    can_improve_ = can_improve_ && (best > worst).any().item<bool>();
    const bool is_full = beams_.early_stopping == BeamOptions::Early::yes && is_finished_.all().item<bool>();
    can_go_on_ = can_improve_ && !is_full && !ends.all().item<bool>();
  }

  std::vector<BeamText> texts() const {
    std::vector<BeamText> texts;
    for (std::int64_t i = 0; i < is_finished_.size(0); ++i) {
      if (!is_finished_[i].item<bool>()) continue;
      const auto& [tokens, end] = finished_[static_cast<std::size_t>(i)];
      BeamText text{{tokens.begin() + prompt_, tokens.end()}, finished_scores_[i].item<double>(), end};
      if (end == GenerationEnd::end_token) text.tokens.pop_back();
      texts.push_back(std::move(text));
    }
    return texts;
  }

  LanguageModel& model_;
  const GenerationOptions& options_;
  const BeamOptions& beams_;
  torch::Device device_;
  std::int64_t prompt_, most_;            // tokens of the prompt, and of a text at most
  std::vector<Beam> running_, finished_;  // each as many as beams
  torch::Tensor running_scores_, finished_scores_, is_finished_;
  bool can_improve_ = true, can_go_on_ = true;
  KeyValueCache cache_;
};

}  // namespace

std::vector<BeamText> search_beams(LanguageModel& model, const std::vector<TokenId>& prompt,
                                   const GenerationOptions& options, const BeamOptions& beams, torch::Device device) {
  require_readable(model, prompt, /*slides=*/false);
  const torch::NoGradGuard no_grad;
  return Search(model, prompt, options, beams, device).run();
}

}  // namespace vernier
