#include "added_tokens.h"

#include <algorithm>

#include "text/unicode/characters.h"
#include "text/unicode/unicode.h"

namespace vernier {

namespace {

bool is_white(char32_t code) {
  return char_classes()[code] == CharClass::white;
}

std::size_t white_before(std::string_view text, std::size_t end) {
  while (end > 0) {
    const auto at = character_before(text, end);
    if (!is_white(character_at(text, at).code)) break;
    end = at;
  }
  return end;
}

std::size_t white_behind(std::string_view text, std::size_t at) {
  while (at < text.size()) {
    const auto [code, size] = character_at(text, at);
    if (!is_white(code)) break;
    at += size;
  }
  return at;
}

bool is_of_word(char32_t code) {
  return (char_flags()[code] & char_flag::word) != 0;
}

// True if a part of the text stands beside no character of a word.
bool is_alone(std::string_view text, std::size_t begin, std::size_t end) {
  const bool is_before = begin > 0 && is_of_word(character_at(text, character_before(text, begin)).code);
  return !is_before && (end == text.size() || !is_of_word(character_at(text, end).code));
}

}  // namespace

AddedTokens::AddedTokens(std::vector<AddedToken> tokens) : tokens_(std::move(tokens)) {
  std::erase_if(tokens_, [](const AddedToken& token) { return !token.is_in_text; });
  for (std::size_t i = 0; i < tokens_.size(); ++i) {
    if (!tokens_[i].text.empty()) by_first_byte_[static_cast<unsigned char>(tokens_[i].text[0])].push_back(i);
  }
  for (auto& places : by_first_byte_) {
    std::ranges::stable_sort(places, std::ranges::greater(), [&](std::size_t i) { return tokens_[i].text.size(); });
  }
}

const AddedToken* AddedTokens::longest_at(std::string_view text, std::size_t at) const {
  for (const auto i : by_first_byte_[static_cast<unsigned char>(text[at])]) {
    if (text.substr(at).starts_with(tokens_[i].text)) return &tokens_[i];
  }
  return nullptr;
}

std::vector<AddedTokens::Part> AddedTokens::cut(std::string_view text, bool skip_special) const {
  std::vector<Part> parts;
  std::size_t done = 0;
  const auto put_text = [&](std::size_t end) {
    if (end > done) parts.push_back({text.substr(done, end - done), nullptr});
  };
  for (std::size_t at = 0; !tokens_.empty() && at < text.size();) {
    const auto* token = longest_at(text, at);
    if (token == nullptr) {
      ++at;
      continue;
    }
    auto begin = at;
    at += token->text.size();
    if (skip_special && token->is_special) continue;
    if (token->is_word && !is_alone(text, begin, at)) continue;
    if (token->strips_left) begin = std::min(begin, std::max(done, white_before(text, begin)));
    const auto end = token->strips_right ? white_behind(text, at) : at;
    put_text(begin);
    parts.push_back({text.substr(begin, end - begin), token});
    done = end;
  }
  put_text(text.size());
  return parts;
}

bool AddedTokens::reaches_over(std::string_view text, std::size_t at) const {
  return std::ranges::any_of(tokens_, [&](const AddedToken& token) {
    const auto size = token.text.size();
    if (token.is_word && text.substr(at).starts_with(token.text.substr(0, text.size() - at))) return true;
    for (std::size_t before = 1; before <= std::min(size, at); ++before) {
      // At the end of the text, the token may go on in what follows.
      if (std::string_view(token.text).starts_with(text.substr(at - before, size))) return true;
    }
    return false;
  });
}

}  // namespace vernier
