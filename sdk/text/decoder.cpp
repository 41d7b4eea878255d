#include "decoder.h"

#include <algorithm>
#include <utility>

#include "normalizer.h"
#include "text/models/model.h"
#include "text/unicode/unicode.h"

namespace vernier {

namespace {

using Decoding = DecodeStep::Kind;
using Tokens = std::vector<std::string>;
constexpr std::string_view replacement = "\xEF\xBF\xBD";

std::string joined(const Tokens& tokens) {
  std::string text;
  for (const auto& token : tokens) text += token;
  return text;
}

void decode_byte_level(Tokens& tokens) {
  std::string bytes;
  for (const auto& token : tokens) bytes += bytes_of_token(token);
  tokens.assign(1, with_replacements(bytes));
}

// Consecutive bytes that are not text become one U+FFFD each.
void decode_bytes(Tokens& tokens) {
  Tokens all;
  std::string bytes;
  const auto put_bytes = [&] {
    if (bytes.empty()) return;
    auto& text = all.emplace_back();
    if (valid_utf8(bytes) == bytes.size()) {
      text = bytes;
    } else {
      for (std::size_t i = 0; i < bytes.size(); ++i) text += replacement;
    }
    bytes.clear();
  };
  for (auto& token : tokens) {
    if (const auto byte = byte_of_token(token)) {
      bytes += *byte;
    } else {
      put_bytes();
      all.push_back(std::move(token));
    }
  }
  put_bytes();
  tokens = std::move(all);
}

std::string stripped(const DecodeStep& step, std::string_view token) {
  for (std::size_t i = 0; i < step.begin && token.starts_with(step.from); ++i) token.remove_prefix(step.from.size());
  for (std::size_t i = 0; i < step.end && token.ends_with(step.from); ++i) token.remove_suffix(step.from.size());
  return std::string(token);
}

void decode_metaspace(const DecodeStep& step, Tokens& tokens) {
  for (std::size_t i = 0; i < tokens.size(); ++i) {
    tokens[i] = with_replaced(tokens[i], space_mark, i == 0 && step.drops_first ? "" : " ");
  }
}

// `clean_up` of `tokenizers`.
std::string cleaned(std::string text) {
  constexpr std::pair<std::string_view, std::string_view> changes[] = {
      {" .", "."},   {" ?", "?"},           {" !", "!"},   {" ,", ","},     {" ' ", "'"},   {" n't", "n't"},
      {" 'm", "'m"}, {" do not", " don't"}, {" 's", "'s"}, {" 've", "'ve"}, {" 're", "'re"}};
  for (const auto& [from, to] : changes) text = with_replaced(text, from, to);
  return text;
}

void decode_word_piece(const DecodeStep& step, Tokens& tokens) {
  for (std::size_t i = 0; i < tokens.size(); ++i) {
    auto& token = tokens[i];
    if (i > 0 && token.starts_with(step.from)) {
      token.erase(0, step.from.size());
    } else if (i > 0) {
      token.insert(0, " ");
    }
    if (step.cleans) token = cleaned(std::move(token));
  }
}

// Replaces each byte outside of characters by U+FFFD.
std::string with_each_replaced(std::string_view bytes) {
  std::string text;
  while (!bytes.empty()) {
    const auto good = valid_utf8(bytes);
    text += bytes.substr(0, good);
    bytes.remove_prefix(good);
    if (bytes.empty()) break;
    text += replacement;
    bytes.remove_prefix(1);
  }
  return text;
}

void decode_sentence_piece(const DecodeStep& step, Tokens& tokens) {
  std::string text, bytes;
  bool is_begin = true, has_dropped = false;
  const auto put_bytes = [&] {
    text += with_each_replaced(bytes);
    bytes.clear();
  };
  for (const auto& token : tokens) {
    if (const auto byte = byte_of_token(token)) {
      bytes += *byte;
      continue;
    }
    put_bytes();
    is_begin = is_begin && !has_dropped && text.empty();
    std::string_view piece = token;
    const bool drops = is_begin && step.drops_first && piece.starts_with(space_mark);
    if (drops) piece.remove_prefix(space_mark.size());
    has_dropped = drops && !step.drops_all;
    text += with_replaced(piece, space_mark, " ");
  }
  put_bytes();
  tokens.assign(1, text);
}

void decode(const DecodeStep& step, Tokens& tokens) {
  switch (step.kind) {
    case Decoding::byte_level:
      return decode_byte_level(tokens);
    case Decoding::byte_fallback:
      return decode_bytes(tokens);
    case Decoding::fuse:
      return tokens.assign(1, joined(tokens));
    case Decoding::metaspace:
      return decode_metaspace(step, tokens);
    case Decoding::word_piece:
      return decode_word_piece(step, tokens);
    case Decoding::sentence_piece:
      return decode_sentence_piece(step, tokens);
    case Decoding::replace:
      for (auto& token : tokens) {
        token = step.regex ? with_replaced(*step.regex, token, step.to) : with_replaced(token, step.from, step.to);
      }
      return;
    case Decoding::strip:
      for (auto& token : tokens) token = stripped(step, token);
      return;
    case Decoding::bpe_suffix:
      for (std::size_t i = 0; i < tokens.size(); ++i) {
        tokens[i] = with_replaced(tokens[i], step.from, i + 1 < tokens.size() ? " " : "");
      }
      return;
    case Decoding::spaces:
      for (std::size_t i = 1; i < tokens.size(); ++i) tokens[i].insert(0, " ");
      return;
  }
}

}  // namespace

std::string decode_tokens(const std::vector<DecodeStep>& steps, std::vector<std::string> tokens) {
  const auto size = [&] {
    std::size_t bytes = 0;
    for (const auto& token : tokens) bytes += token.size() + 1;
    return bytes;
  };
  const auto before = size();
  for (const auto& step : steps) {
    decode(step, tokens);
    require_likely(before, size());
  }
  return joined(tokens);
}

}  // namespace vernier
