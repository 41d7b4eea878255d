#include "tokens.h"

#include <ATen/ops/full.h>
#include <vernier/error.h>
#include <vernier/text/bpe_trainer.h>

#include <algorithm>

#include "../language/model_files.h"

namespace text {

vernier::State learned_tokenizer(const std::vector<std::string>& texts, std::int64_t vocabulary) {
  vernier::PieceCounts counts;
  for (const auto& text : texts) counts.add(text);
  const language::ModelFolder folder({});
  vernier::save_bpe(folder.path(),
                    vernier::train_bpe(counts, {.vocabulary = vocabulary, .min_count = 2, .special = {}}), {});
  constexpr const char* file = "tokenizer.json";
  return {{file, language::read_model_files(folder.path(), "").tensor(file)}};
}

std::string Code::describe() const {
  std::string text;
  const auto add = [&](const std::string& part) { text += (text.empty() ? "" : ", then ") + part; };
  for (const auto token : before) add(std::to_string(token));
  add("the ids of the tokenizer" + (first_id == 0 ? "" : ", each plus " + std::to_string(first_id)));
  for (const auto token : behind) add(std::to_string(token));
  add(std::to_string(padding) + " up to the length");
  return text;
}

Code published_code(const vernier::Tokenizer& tokenizer) {
  const std::string text = "a";
  const auto plain = tokenizer.encode_plain(text), whole = tokenizer.encode(text);
  const auto found = std::ranges::search(whole, plain);
  if (found.empty()) {
    vernier::refuse(
        "the tokenizer writes a text in another way where it adds special tokens, which task/text cannot do");
  }
  Code code;
  code.before.assign(whole.begin(), found.begin());
  code.behind.assign(found.end(), whole.end());
  return code;
}

Encoded encode(const vernier::Tokenizer& tokenizer, const Code& code, const std::vector<std::string>& texts,
               std::int64_t length, bool fits) {
  Encoded all;
  const auto around = std::ssize(code.before) + std::ssize(code.behind);
  std::vector<std::vector<vernier::TokenId>> ids;
  ids.reserve(texts.size());
  for (const auto& text : texts) {
    auto& own = ids.emplace_back(tokenizer.encode_plain(text));
    if (std::ssize(own) + around > length) {
      own.resize(static_cast<std::size_t>(std::max<std::int64_t>(0, length - around)));
      ++all.shortened;
    }
    if (own.empty() && around == 0 && all.empty < 0) all.empty = std::ssize(ids) - 1;
    all.longest = std::max<std::int64_t>(all.longest, std::ssize(own) + around);
  }
  const auto columns = fits ? all.longest : std::max(length, around);
  all.tokens = at::full({std::ssize(texts), columns}, code.padding, torch::kInt32);
  auto* row = all.tokens.mutable_data_ptr<std::int32_t>();
  const auto as_token = [](std::int64_t id) { return static_cast<std::int32_t>(id); };
  for (const auto& own : ids) {
    auto* next = std::ranges::transform(code.before, row, as_token).out;
    next = std::ranges::transform(own, next, [&](auto id) { return as_token(id + code.first_id); }).out;
    std::ranges::transform(code.behind, next, as_token);
    row += columns;
  }
  return all;
}

}  // namespace text
