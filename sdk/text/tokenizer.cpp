#include <vernier/checksum.h>
#include <vernier/error.h>
#include <vernier/text/tokenizer.h>

#include <algorithm>

#include "text/unicode/unicode.h"
#include "text_tokenizer.h"

namespace vernier {

namespace {

std::int64_t vocabulary_of(const TokenizerFile& file) {
  TokenId largest = 0;
  for (const auto& [token, id] : file.vocabulary) largest = std::max(largest, id);
  for (const auto& token : file.added) largest = std::max(largest, token.id);
  return std::int64_t{largest} + 1;
}

std::optional<TokenId> find_end_of_text(const TokenizerFile& file) {
  if (file.end_of_text) {
    if (const auto found = file.vocabulary.find(*file.end_of_text); found != file.vocabulary.end()) {
      return found->second;
    }
    for (const auto& token : file.added) {
      if (token.text == *file.end_of_text) return token.id;
    }
  }
  for (const auto* name : {"<|endoftext|>", "<|end_of_text|>", "</s>"}) {
    for (const auto& token : file.added) {
      if (token.text == name && token.is_special) return token.id;
    }
  }
  return std::nullopt;
}

}  // namespace

Tokenizer::~Tokenizer() = default;

TextTokenizer::TextTokenizer(const TokenizerFile& file)
    : vocabulary_(vocabulary_of(file)),
      ids_(file.vocabulary),
      is_special_(static_cast<std::size_t>(vocabulary_)),
      is_added_(is_special_.size()),
      before_(file.before),
      after_(file.after),
      end_of_text_(find_end_of_text(file)) {
  const auto size = static_cast<std::size_t>(vocabulary_);
  segments_ = std::make_unique<const Segments>(file, size);
  std::vector<AddedToken> in_text, in_normalized;
  for (auto token : file.added) {
    ids_.emplace(token.text, token.id);
    is_added_[static_cast<std::size_t>(token.id)] = true;
    if (token.is_special) is_special_[static_cast<std::size_t>(token.id)] = true;
    if (token.is_normalized && !token.is_as_it_is) token.text = segments_->normalized(token.text, Place::beginning);
    (token.is_normalized ? in_normalized : in_text).push_back(std::move(token));
  }
  has_normalized_ = !in_normalized.empty();
  in_text_ = AddedTokens(std::move(in_text));
  in_normalized_ = AddedTokens(std::move(in_normalized));
  all_ = AddedTokens(file.added);
  for (const auto* ids : {&before_, &after_}) {
    const bool is_known = std::ranges::all_of(*ids, [&](TokenId id) { return id < vocabulary_; });
    if (!is_known) refuse("'" + file.path + "': `post_processor` adds an id that is not a token");
  }
}

TextTokenizer::~TextTokenizer() = default;

std::unique_ptr<Scratch> TextTokenizer::borrow() const {
  {
    const std::lock_guard lock(mutex_);
    if (!scratches_.empty()) {
      auto scratch = std::move(scratches_.back());
      scratches_.pop_back();
      return scratch;
    }
  }
  return std::make_unique<Scratch>();
}

void TextTokenizer::encode_segment(std::string_view segment, Place place, bool is_plain, Scratch& scratch,
                                   std::vector<TokenId>& ids) const {
  const auto text = segments_->normalized(segment, place);
  if (text.empty()) return;
  if (!has_normalized_) return segments_->encode(text, place, scratch, ids);
  for (const auto& part : in_normalized_.cut(text, is_plain)) {
    if (part.token != nullptr) {
      ids.push_back(part.token->id);
    } else {
      segments_->encode(part.text, part.text.data() == text.data() ? place : Place::after_token, scratch, ids);
    }
  }
}

void TextTokenizer::encode_part(std::string_view part, Place begin, bool is_plain, std::vector<TokenId>& ids) const {
  auto scratch = borrow();
  for (const auto& each : in_text_.cut(part, is_plain)) {
    if (each.token != nullptr) {
      ids.push_back(each.token->id);
      continue;
    }
    const bool is_at_begin = each.text.data() == part.data();
    encode_segment(each.text, is_at_begin ? begin : Place::after_token, is_plain, *scratch, ids);
  }
  const std::lock_guard lock(mutex_);
  scratches_.push_back(std::move(scratch));
}

std::size_t TextTokenizer::last_cut(std::string_view text) const {
  if (text.empty()) return 0;
  auto at = character_before(text, text.size());
  while (at > 0) {
    const auto before = character_before(text, at);
    const bool can_cut = segments_->can_cut(character_at(text, before).code, character_at(text, at).code);
    if (can_cut && !all_.reaches_over(text, at)) return at;
    at = before;
  }
  return 0;
}

std::vector<TokenId> TextTokenizer::encode_whole(std::string_view text, Place begin, bool special, bool plain) const {
  if (const auto good = valid_utf8(text); good != text.size()) {
    refuse("the text to encode is not UTF-8 at byte " + std::to_string(good));
  }
  std::vector<TokenId> ids;
  ids.reserve(text.size() / 3 + 8);
  if (special) ids.insert(ids.end(), before_.begin(), before_.end());
  encode_part(text, begin, plain, ids);
  if (special) ids.insert(ids.end(), after_.begin(), after_.end());
  return ids;
}

std::vector<TokenId> TextTokenizer::encode(std::string_view text, bool special) const {
  return encode_whole(text, Place::beginning, special, false);
}

std::vector<TokenId> TextTokenizer::encode_plain(std::string_view text, bool is_behind_token) const {
  return encode_whole(text, is_behind_token ? Place::after_token : Place::beginning, false, true);
}

std::string TextTokenizer::decode(std::span<const TokenId> ids, bool keep_special) const {
  if (keep_special) return segments_->decode(ids);
  std::vector<TokenId> kept;
  for (const auto id : ids) {
    if (id >= 0 && id < vocabulary_ && !is_special_[static_cast<std::size_t>(id)]) kept.push_back(id);
  }
  return segments_->decode(kept);
}

std::optional<TokenId> TextTokenizer::id(std::string_view token) const {
  const auto found = ids_.find(std::string(token));
  return found != ids_.end() ? std::optional(found->second) : std::nullopt;
}

std::string TextTokenizer::checksum() const {
  std::vector<std::pair<TokenId, std::string_view>> tokens;
  tokens.reserve(ids_.size());
  for (const auto& [text, id] : ids_) tokens.emplace_back(id, text);
  std::ranges::sort(tokens);
  std::string all;
  for (const auto& [id, text] : tokens) {
    all += std::to_string(id) + ' ' + std::to_string(text.size()) + ' ';
    all += text;
  }
  return checksum_of(all);
}

std::shared_ptr<const TextTokenizer> open_text_tokenizer(const std::filesystem::path& folder) {
  return std::make_shared<const TextTokenizer>(read_tokenizer_folder(folder));
}

std::shared_ptr<const Tokenizer> open_tokenizer(const std::filesystem::path& folder) {
  return open_text_tokenizer(folder);
}

}  // namespace vernier
