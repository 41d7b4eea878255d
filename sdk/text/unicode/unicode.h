// UTF-8, and the classes of characters that tokenizers cut texts by: those of Unicode 16.0, as tokenizers 0.21 to 0.23
// have them.
#pragma once

#include <vernier/abi.h>

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace vernier {

enum class CharClass : std::uint8_t { other, letter, number, white };  // \p{L}, \p{N}, \s

// The class of every code point, 0x110000 of them. Made at the first call.
VERNIER_API const std::vector<CharClass>& char_classes();

// Characters from the first to the last.
using CodeRanges = std::vector<std::pair<char32_t, char32_t>>;
// The characters of a property, in order: a general category or the first letter of several, "Lu" or "L", "Han", "s"
// for white characters, "d" for decimal digits, and "w" for characters of words. Nothing for another name.
VERNIER_API std::optional<CodeRanges> ranges_of(std::string_view property);
// All other characters.
VERNIER_API CodeRanges all_but(const CodeRanges& ranges);

struct Character {
  char32_t code = 0;
  std::size_t size = 0;  // bytes
};

// The character at a byte of valid UTF-8.
inline Character character_at(std::string_view text, std::size_t at) {
  const auto byte = [&](std::size_t i) { return static_cast<char32_t>(static_cast<unsigned char>(text[at + i])); };
  const auto more = [&](std::size_t i) { return byte(i) & 0x3F; };
  const auto lead = byte(0);
  if (lead < 0x80) return {lead, 1};
  if (lead < 0xE0) return {(lead & 0x1F) << 6 | more(1), 2};
  if (lead < 0xF0) return {(lead & 0x0F) << 12 | more(1) << 6 | more(2), 3};
  return {(lead & 0x07) << 18 | more(1) << 12 | more(2) << 6 | more(3), 4};
}

// The beginning of the character that ends before a byte of valid UTF-8; `end` is not 0.
inline std::size_t character_before(std::string_view text, std::size_t end) {
  do --end;
  while ((static_cast<unsigned char>(text[end]) & 0xC0) == 0x80);
  return end;
}

VERNIER_API void append_utf8(std::string& text, char32_t code);

// The number of bytes before the first that is not UTF-8; the size of a valid text.
VERNIER_API std::size_t valid_utf8(std::string_view bytes);

// The number of bytes at the end that begin a character and may go on with the bytes that follow: 0 to 3.
VERNIER_API std::size_t unfinished_utf8(std::string_view bytes);

// Each maximal part that is not UTF-8 as one U+FFFD, as Python's bytes.decode("utf-8", "replace") does (Unicode 16.0,
// section 3.9, "U+FFFD Substitution of Maximal Subparts").
VERNIER_API std::string with_replacements(std::string_view bytes);

}  // namespace vernier
