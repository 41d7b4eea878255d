#include "characters.h"

#include "packed_numbers.h"
#include "unicode.h"

namespace vernier {

namespace {

// The small letter of each character, up to the last that has one.
const std::vector<char32_t>& small_letters() {
  static const auto letters = [] {
    std::vector<char32_t> all;
    char32_t first = 0;
    for (PackedNumbers runs(lower_case); !runs.done();) {
      first += runs.next();
      const auto more = runs.next(), step = more % 2 + 1, last = first + more / 2 * step;
      const char32_t lower = runs.next();
      while (all.size() <= last) all.push_back(static_cast<char32_t>(all.size()));
      for (auto code = first; code <= last; code += step) all[code] = lower + (code - first);
    }
    return all;
  }();
  return letters;
}

enum class Jamo : std::uint8_t { none, leading, vowel, trailing, syllable, closed_syllable };

Jamo jamo_of(char32_t code) {
  const auto is_in = [&](char32_t first, char32_t last) { return code >= first && code <= last; };
  if (is_in(0x1100, 0x115F) || is_in(0xA960, 0xA97C)) return Jamo::leading;
  if (is_in(0x1160, 0x11A7) || is_in(0xD7B0, 0xD7C6)) return Jamo::vowel;
  if (is_in(0x11A8, 0x11FF) || is_in(0xD7CB, 0xD7FB)) return Jamo::trailing;
  if (!is_in(0xAC00, 0xD7A3)) return Jamo::none;
  return (code - 0xAC00) % 28 == 0 ? Jamo::syllable : Jamo::closed_syllable;
}

bool joins_jamo(char32_t before, char32_t behind) {
  const auto left = jamo_of(before), right = jamo_of(behind);
  if (left == Jamo::none || right == Jamo::none) return false;
  if (left == Jamo::leading) return right != Jamo::trailing;
  const bool takes_vowel = left == Jamo::vowel || left == Jamo::syllable;
  return right == Jamo::trailing || (takes_vowel && right == Jamo::vowel);
}

}  // namespace

const std::vector<std::uint16_t>& char_flags() {
  static const auto flags = [] {
    std::vector<std::uint16_t> all;
    all.reserve(0x110000);
    for (PackedNumbers runs(flag_runs); !runs.done();) {
      const auto length = runs.next() + 1;
      all.insert(all.end(), length, static_cast<std::uint16_t>(runs.next()));
    }
    return all;
  }();
  return flags;
}

std::string in_lower_case(std::string_view text) {
  const auto& letters = small_letters();
  std::string lower;
  lower.reserve(text.size());
  for (std::size_t at = 0; at < text.size();) {
    const auto [code, size] = character_at(text, at);
    if (size == 1) {
      lower += static_cast<char>(letters[code]);
    } else if (code == 0x130) {
      lower += "i\xCC\x87";
    } else if (code < letters.size() && letters[code] != code) {
      append_utf8(lower, letters[code]);
    } else {
      lower += text.substr(at, size);
    }
    at += size;
  }
  return lower;
}

std::size_t grapheme_end(std::string_view text, std::size_t at) {
  constexpr char32_t joiner = 0x200D;  // ZERO WIDTH JOINER
  const auto& flags = char_flags();
  auto [before, first] = character_at(text, at);
  bool is_pictographic = (flags[before] & char_flag::pictographic) != 0;  // with what extends it
  for (at += first; at < text.size();) {
    const auto [code, size] = character_at(text, at);
    if (before == U'\r' && code == U'\n') return at + size;
    if (((flags[before] | flags[code]) & char_flag::breaks) != 0) return at;
    const bool extends = (flags[code] & char_flag::extends) != 0;
    const bool is_next_picture = (flags[code] & char_flag::pictographic) != 0;
    const bool joins = extends || (flags[before] & char_flag::prepends) != 0 || joins_jamo(before, code) ||
                       (is_pictographic && before == joiner && is_next_picture);
    if (!joins) return at;
    is_pictographic = is_next_picture || (is_pictographic && extends);
    before = code;
    at += size;
  }
  return at;
}

}  // namespace vernier
