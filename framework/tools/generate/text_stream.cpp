#include "text_stream.h"

#include <algorithm>

#include "text/unicode/unicode.h"

namespace vernier {

namespace {

constexpr const char* unknown = "\xEF\xBF\xBD";  // U+FFFD: perhaps half a character
constexpr std::size_t context = 16;              // tokens of the prompt that the text is decoded with

std::size_t characters_in(std::string_view text) {
  return static_cast<std::size_t>(
      std::ranges::count_if(text, [](char c) { return (static_cast<unsigned char>(c) & 0xC0U) != 0x80U; }));
}

// The tokens before a text say whether it begins with a space.
std::vector<TokenId> last_of(std::vector<TokenId> tokens) {
  if (tokens.size() > context) tokens.erase(tokens.begin(), tokens.end() - context);
  return tokens;
}

}  // namespace

TextStream::TextStream(const Codec& codec, std::vector<TokenId> prompt, std::vector<std::string> stops,
                       std::function<void(const std::string&)> print)
    : codec_(codec),
      tokens_(last_of(std::move(prompt))),
      stops_(std::move(stops)),
      print_(std::move(print)),
      before_(codec.decode(tokens_)) {}

bool TextStream::add(TokenId token) {
  std::string_view whole = shown_;
  std::size_t replaced = 0;
  for (; whole.ends_with(unknown); whole.remove_suffix(3)) ++replaced;
  const auto characters = characters_in(whole);
  begins_.push_back({whole.size(), characters, replaced, false});
  const bool is_wanted = add_all({{token}});
  begins_.back().goes_on = replaced > 0 && characters_in(shown_) <= characters + replaced;
  return is_wanted;
}

std::size_t TextStream::offset(std::size_t token) const {
  const auto [bytes, characters, replaced, goes_on] = begins_.at(token);
  auto rest = std::string_view(shown_).substr(std::min(bytes, shown_.size()));
  std::size_t stayed = 0;
  for (; stayed < replaced && rest.starts_with(unknown); rest.remove_prefix(3)) ++stayed;
  return characters + stayed - (goes_on && stayed == replaced ? 1 : 0);
}

// The text behind the prompt. Where bytes are tokens, a part of a character makes U+FFFD of each byte before it, though
// they were whole characters, which are printed. So these stay, and each byte behind them is a U+FFFD until it is a
// part of a whole one.
std::string TextStream::decoded() {
  const auto all = codec_.decode(tokens_);
  const auto rest = all.substr(std::min(before_.size() + settled_bytes_, all.size()));
  auto same = static_cast<std::size_t>(std::ranges::mismatch(rest, whole_).in1 - rest.begin());
  while (same > 0 && same < whole_.size() && (static_cast<unsigned char>(whole_[same]) & 0xC0U) == 0x80U) --same;
  std::size_t lost = whole_.size() - same, behind = same;
  for (; lost > 0 && rest.compare(behind, 3, unknown) == 0; behind += 3) --lost;
  if (lost > 0 || same == whole_.size()) {  // it only became longer, or is another text
    whole_ = rest;
    while (whole_.ends_with(unknown)) whole_.resize(whole_.size() - 3);
    return settled_ + rest;
  }
  const auto text = settled_ + whole_ + rest.substr(behind);
  if (text.ends_with(unknown) || behind == rest.size()) return text;
  settled_ = text;  // another token came behind the bytes, so they stay what they are
  settled_bytes_ += rest.size();
  whole_.clear();
  return text;
}

bool TextStream::add_all(std::span<const TokenId> tokens) {
  count_ += std::ssize(tokens);
  tokens_.insert(tokens_.end(), tokens.begin(), tokens.end());
  text_ = decoded();
  shown_ = with_replacements(text_);
  std::size_t first = std::string::npos;
  for (const auto& stop : stops_) {
    first = std::min(first, text_.find(stop));
  }
  if (first != std::string::npos) text_.resize(first);
  print_up_to(first == std::string::npos ? safe_length() : first);
  return first == std::string::npos;
}

void TextStream::finish() {
  print_up_to(text_.size());
}

// Without what later tokens may change: half characters at the end, and the beginning of a stop word.
std::size_t TextStream::safe_length() const {
  auto safe = std::string_view(text_).substr(0, text_.size() - unfinished_utf8(text_));
  while (safe.ends_with(unknown)) safe.remove_suffix(3);
  auto length = safe.size();
  for (const auto& stop : stops_) {
    for (auto part = std::min(stop.size() - 1, safe.size()); part > 0; --part) {
      if (!safe.ends_with(std::string_view(stop).substr(0, part))) continue;
      length = std::min(length, safe.size() - part);
      break;
    }
  }
  return length;
}

void TextStream::print_up_to(std::size_t length) {
  if (length <= printed_) return;
  print_(text_.substr(printed_, length - printed_));
  printed_ = length;
}

}  // namespace vernier
