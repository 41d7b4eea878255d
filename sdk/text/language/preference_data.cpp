#include <ATen/ops/full.h>
#include <ATen/ops/zeros.h>
#include <c10/util/StringUtil.h>
#include <torch/types.h>
#include <vernier/checksum.h>
#include <vernier/error.h>
#include <vernier/text/language_data.h>

#include <algorithm>

#include "base/parts.h"
#include "language_texts.h"

namespace vernier {

namespace {

constexpr std::int64_t not_compared = -100;  // target that cross_entropy_loss() ignores

struct Pair {
  TokenizedText chosen, rejected;
  std::size_t line;
};

class PreferenceDataset final : public Dataset {
 public:
  PreferenceDataset(std::string path, std::string unit, std::int64_t length, std::vector<Pair> pairs)
      : path_(std::move(path)), unit_(std::move(unit)), length_(length), pairs_(std::move(pairs)) {}
  std::int64_t size() const override { return std::ssize(pairs_); }
  Sample get(std::int64_t index, Random&) const override {
    auto inputs = at::zeros({2, length_}, torch::kInt64), targets = at::full({2, length_}, not_compared, torch::kInt64);
    const auto& pair = pairs_[static_cast<std::size_t>(index)];
    const auto counts = {fill(pair.chosen, inputs[0], targets[0]), fill(pair.rejected, inputs[1], targets[1])};
    return {inputs, targets, at::tensor(std::vector<std::int64_t>(counts))};
  }
  std::string where(std::int64_t index) const override {
    return c10::str("'", path_, "' ", unit_, " ", pairs_[static_cast<std::size_t>(index)].line);
  }
  std::string fingerprint() const override {
    Checksum checksum;
    for (const auto& pair : pairs_) {
      for (const auto* text : {&pair.chosen, &pair.rejected}) {
        checksum.add(text->ids.data(), text->ids.size() * sizeof(TokenId));
        const std::string learned(text->is_learned.begin(), text->is_learned.end());
        checksum.add(learned.data(), learned.size());
      }
    }
    return c10::str(size(), " pairs of up to ", length_, " tokens, XXH3 ", checksum.digits());
  }

 private:
  // Copies the tokens of a text into `inputs` and `targets`. Returns the number of inputs.
  std::int64_t fill(const TokenizedText& text, torch::Tensor inputs, torch::Tensor targets) const {
    auto *input = inputs.mutable_data_ptr<std::int64_t>(), *target = targets.mutable_data_ptr<std::int64_t>();
    const auto count = std::min(length_, std::ssize(text.ids) - 1);
    for (std::int64_t i = 0; i < count; ++i) {
      const auto at = static_cast<std::size_t>(i);
      input[i] = text.ids[at];
      if (text.is_learned[at + 1]) target[i] = text.ids[at + 1];
    }
    return count;
  }

  std::string path_, unit_;
  std::int64_t length_;
  std::vector<Pair> pairs_;
};

bool has_target(const TokenizedText& text, std::int64_t length) {
  const auto end = std::min(length + 1, std::ssize(text.ids));
  return end > 1 && std::count(text.is_learned.begin() + 1, text.is_learned.begin() + end, true) > 0;
}

}  // namespace

PreferenceData read_preference_data(const Tokenizer& tokenizer, const std::string& path,
                                    const LanguageDataOptions& options) {
  if (options.length < 1) refuse("rows of " + std::to_string(options.length) + " tokens cannot be made; at least 1");
  auto of_answers = options;
  of_answers.learns_all = false;
  const LanguageTexts texts(tokenizer, path, of_answers);
  std::vector<TokenizedPreference> parts(texts.size());
  for_each_part(parts.size(), [&](std::size_t i) { parts[i] = texts.preference(i); });
  PreferenceData data;
  std::vector<Pair> pairs;
  for (std::size_t i = 0; i < parts.size(); ++i) {
    auto& [chosen, rejected] = parts[i];
    if (!has_target(chosen, options.length) || !has_target(rejected, options.length)) {
      ++data.left_out;
      continue;
    }
    data.chats += chosen.form == LanguageLine::Form::messages ? 1 : 0;
    pairs.push_back({std::move(chosen), std::move(rejected), texts.line(i)});
  }
  if (pairs.empty()) refuse("'" + path + "' has no pair of answers with a token to compare");
  data.dataset = std::make_shared<PreferenceDataset>(path, texts.unit(), options.length, std::move(pairs));
  return data;
}

}  // namespace vernier
