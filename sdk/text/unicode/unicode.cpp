#include "unicode.h"

#include <algorithm>
#include <cstring>
#include <span>

#include "packed_numbers.h"
#include "unicode_tables.h"

namespace vernier {

namespace {

constexpr std::size_t code_points = 0x110000;

struct Utf8Step {
  std::size_t size;  // size of the character, or of the maximal part that is none
  bool valid;
};

// Table 3-7 of Unicode, "Well-Formed UTF-8 Byte Sequences".
Utf8Step step(std::string_view bytes, std::size_t at) {
  const auto byte = [&](std::size_t i) { return static_cast<unsigned char>(bytes[i]); };
  const unsigned lead = byte(at);
  if (lead < 0x80) return {1, true};
  if (lead < 0xC2 || lead > 0xF4) return {1, false};
  const std::size_t size = lead < 0xE0 ? 2 : lead < 0xF0 ? 3 : 4;
  unsigned low = lead == 0xE0 ? 0xA0 : lead == 0xF0 ? 0x90 : 0x80;
  unsigned high = lead == 0xED ? 0x9F : lead == 0xF4 ? 0x8F : 0xBF;
  for (std::size_t i = 1; i < size; ++i) {
    if (at + i >= bytes.size() || byte(at + i) < low || byte(at + i) > high) return {i, false};
    low = 0x80;
    high = 0xBF;
  }
  return {size, true};
}

// The end of the ASCII characters from `at`.
std::size_t ascii_end(std::string_view bytes, std::size_t at) {
  constexpr std::uint64_t high_bits = 0x8080808080808080;
  for (std::uint64_t eight = 0; at + sizeof eight <= bytes.size(); at += sizeof eight) {
    std::memcpy(&eight, bytes.data() + at, sizeof eight);
    if ((eight & high_bits) != 0) break;
  }
  while (at < bytes.size() && static_cast<unsigned char>(bytes[at]) < 0x80) ++at;
  return at;
}

CodeRanges in_order(std::span<const CodeRange> table) {
  CodeRanges all;
  for (const auto& [first, last] : table) all.emplace_back(first, last);
  return all;
}

// Calls use(name, first, last) for each run of characters of one general category.
template <class Use>
void for_each_category(const Use& use) {
  char32_t first = 0;
  for (PackedNumbers runs(category_runs); !runs.done();) {
    const auto run = runs.next();
    const char32_t last = first + run / 32;
    use(category_names.substr(std::size_t{run % 32} * 3, 2), first, last);
    first = last + 1;
  }
}

// Oniguruma's characters of words: Letter, Mark, Decimal_Number and Connector_Punctuation.
bool is_of_word(std::string_view category) {
  return category[0] == 'L' || category[0] == 'M' || category == "Nd" || category == "Pc";
}

}  // namespace

std::optional<CodeRanges> ranges_of(std::string_view property) {
  if (property == "s") return in_order(white_ranges);
  if (property == "Han") return in_order(han_ranges);
  const auto name = property == "d" ? "Nd" : property;
  CodeRanges all;
  for_each_category([&](std::string_view category, char32_t first, char32_t last) {
    if (name == "w" ? !is_of_word(category) : !category.starts_with(name)) return;
    if (!all.empty() && all.back().second + 1 == first) {
      all.back().second = last;
    } else {
      all.emplace_back(first, last);
    }
  });
  return all.empty() || name.empty() ? std::nullopt : std::optional(all);
}

CodeRanges all_but(const CodeRanges& ranges) {
  CodeRanges all;
  char32_t next = 0;
  for (const auto& [first, last] : ranges) {
    if (first > next) all.emplace_back(next, first - 1);
    next = last + 1;
  }
  if (next < code_points) all.emplace_back(next, char32_t{code_points - 1});
  return all;
}

const std::vector<CharClass>& char_classes() {
  static const auto classes = [] {
    std::vector<CharClass> all(code_points, CharClass::other);
    const auto fill = [&](const auto& ranges, CharClass kind) {
      for (const auto& [first, last] : ranges) std::fill(all.begin() + first, all.begin() + last + 1, kind);
    };
    fill(*ranges_of("L"), CharClass::letter);
    fill(*ranges_of("N"), CharClass::number);
    fill(white_ranges, CharClass::white);
    return all;
  }();
  return classes;
}

void append_utf8(std::string& text, char32_t code) {
  const auto put = [&](char32_t byte) { text += static_cast<char>(byte); };
  const auto more = [&](unsigned shift) { put(0x80 | (code >> shift & 0x3F)); };
  if (code < 0x80) return put(code);
  if (code < 0x800) {
    put(0xC0 | code >> 6);
  } else if (code < 0x10000) {
    put(0xE0 | code >> 12);
    more(6);
  } else {
    put(0xF0 | code >> 18);
    more(12);
    more(6);
  }
  more(0);
}

std::size_t valid_utf8(std::string_view bytes) {
  for (std::size_t at = 0;;) {
    at = ascii_end(bytes, at);
    if (at == bytes.size()) return at;
    const auto [size, valid] = step(bytes, at);
    if (!valid) return at;
    at += size;
  }
}

std::size_t unfinished_utf8(std::string_view bytes) {
  for (std::size_t tail = 1; tail <= std::min<std::size_t>(3, bytes.size()); ++tail) {
    const auto lead = static_cast<unsigned char>(bytes[bytes.size() - tail]);
    if (lead < 0x80) return 0;
    if (lead < 0xC0) continue;
    const auto [size, valid] = step(bytes, bytes.size() - tail);
    const bool could_go_on = lead >= 0xC2 && lead <= 0xF4;
    return !valid && could_go_on && size == tail ? tail : 0;
  }
  return 0;
}

std::string with_replacements(std::string_view bytes) {
  std::string text;
  for (std::size_t at = 0; at < bytes.size();) {
    const auto good = valid_utf8(bytes.substr(at));
    text += bytes.substr(at, good);
    at += good;
    if (at == bytes.size()) break;
    text += "\xEF\xBF\xBD";
    at += step(bytes, at).size;
  }
  return text;
}

}  // namespace vernier
