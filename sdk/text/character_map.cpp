#include "character_map.h"

#include <vernier/error.h>

#include <cstring>

#include "normalizer.h"
#include "text/unicode/characters.h"
#include "text/unicode/unicode.h"

namespace vernier {

namespace {

// A unit of darts-clone: the byte that leads to it, where its children are, and whether a value is among them.
struct Unit {
  std::uint32_t bits;
  std::uint32_t label() const { return bits & (0x80000000U | 0xFF); }
  std::uint32_t offset() const { return (bits >> 10) << ((bits & 0x200) >> 6); }
  bool has_leaf() const { return (bits >> 8 & 1) != 0; }
  std::uint32_t value() const { return bits & 0x7FFFFFFF; }
};

}  // namespace

CharacterMap::CharacterMap(std::string_view bytes) {
  std::uint32_t size = 0;
  if (bytes.size() < sizeof size) refuse("is too short for a map of characters");
  std::memcpy(&size, bytes.data(), sizeof size);
  bytes.remove_prefix(sizeof size);
  if (size == 0 || size % sizeof(std::uint32_t) != 0 || size > bytes.size()) {
    refuse("says that its table has " + std::to_string(size) + " bytes, and " + std::to_string(bytes.size()) +
           " follow");
  }
  units_.resize(size / sizeof(std::uint32_t));
  std::memcpy(units_.data(), bytes.data(), size);
  texts_ = bytes.substr(size);
  if (valid_utf8(texts_) != texts_.size()) refuse("has texts that are not UTF-8");
  for (unsigned char byte = 0; byte < 0x80; ++byte) keeps_[byte] = !has_rule_of_ascii(byte);
}

// True if a text of the map is this character, or begins with it and another one of ASCII.
bool CharacterMap::has_rule_of_ascii(unsigned char byte) const {
  const auto unit = [&](std::size_t place) { return Unit{place < units_.size() ? units_[place] : 0}; };
  auto place = unit(0).offset() ^ byte;
  const auto first = unit(place);
  if (first.label() != byte) return false;
  if (first.has_leaf()) return true;
  place ^= first.offset();
  for (std::uint32_t next = 1; next < 0x80; ++next) {
    if (unit(place ^ next).label() == next) return true;
  }
  return false;
}

std::optional<CharacterMap::Rule> CharacterMap::find(std::string_view text, bool is_shortest) const {
  std::optional<Rule> rule;
  const auto unit = [&](std::size_t place) { return Unit{place < units_.size() ? units_[place] : 0}; };
  std::size_t place = unit(0).offset();
  for (std::size_t i = 0; i < text.size(); ++i) {
    const auto byte = static_cast<unsigned char>(text[i]);
    place ^= byte;
    const auto next = unit(place);
    if (byte == 0 || next.label() != byte) break;
    place ^= next.offset();
    // A damaged map may cut a character.
    const auto cuts = [](std::string_view bytes, std::size_t at) {
      return at < bytes.size() && (static_cast<unsigned char>(bytes[at]) & 0xC0) == 0x80;
    };
    if (!next.has_leaf() || cuts(text, i + 1)) continue;
    const std::size_t begin = unit(place).value();
    if (begin >= texts_.size() || cuts(texts_, begin)) break;
    rule = {i + 1, std::string_view(texts_.c_str() + begin)};
    if (is_shortest) break;
  }
  return rule;
}

std::string CharacterMap::apply(std::string_view text) const {
  constexpr std::size_t longest_grapheme = 5;
  std::string result;
  result.reserve(text.size());
  const auto put = [&](std::string_view part) {
    const auto rule = find(part, true);
    if (rule) require_likely(text.size(), (result += rule->text).size());
    return rule.has_value();
  };
  for (std::size_t at = 0; at < text.size();) {
    const auto end = grapheme_end(text, at);
    if (end - at <= longest_grapheme && put(text.substr(at, end - at))) {
      at = end;
      continue;
    }
    while (at < end) {
      const auto one = text.substr(at, character_at(text, at).size);
      if (!put(one)) result += one;
      at += one.size();
    }
  }
  return result;
}

}  // namespace vernier
