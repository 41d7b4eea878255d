#include "normal_forms.h"

#include <algorithm>
#include <cstdint>
#include <span>
#include <unordered_map>
#include <vector>

#include "normalizer_tables.h"
#include "packed_numbers.h"
#include "text/bpe/bpe.h"
#include "unicode.h"
#include "unicode_tables.h"

namespace vernier {

namespace {

// Section 3.12 of Unicode, "Conjoining Jamo Behavior".
namespace hangul {
constexpr char32_t syllables = 0xAC00, leading = 0x1100, vowels = 0x1161, trailing = 0x11A7;
constexpr char32_t leading_count = 19, vowel_count = 21, trailing_count = 28;
constexpr char32_t syllable_count = leading_count * vowel_count * trailing_count;

char32_t compose(char32_t first, char32_t second) {
  if (first - leading < leading_count && second - vowels < vowel_count) {
    return syllables + ((first - leading) * vowel_count + (second - vowels)) * trailing_count;
  }
  const bool takes_trailing = first - syllables < syllable_count && (first - syllables) % trailing_count == 0;
  if (takes_trailing && second > trailing && second - trailing < trailing_count) return first + (second - trailing);
  return 0;
}
}  // namespace hangul

struct Decomposition {
  char32_t first, second;  // `second` is 0 if there is one alone
};

struct FormTables {
  std::unordered_map<char32_t, Decomposition> decomposed;
  std::unordered_map<char32_t, std::u32string> compatible;
  MergeTable composed{decompositions.size() / 3};  // a row has at least three digits
  std::vector<std::uint8_t> combining = std::vector<std::uint8_t>(0x110000);
  std::vector<bool> acts = std::vector<bool>(0x110000);  // may change the text beside it, or be changed
};

const FormTables& form_tables() {
  static const auto tables = [] {
    FormTables all;
    char32_t code = 0;
    for (PackedNumbers rows(combining_ranges); !rows.done();) {
      code += rows.next();
      const auto more = rows.next(), number = rows.next();
      std::fill_n(all.combining.begin() + code, more + 1, static_cast<std::uint8_t>(number));
      std::fill_n(all.acts.begin() + code, more + 1, true);
    }
    code = 0;
    for (PackedNumbers rows(decompositions); !rows.done();) {
      const auto head = rows.next();
      code += head / 2;
      const bool is_composed = head % 2 != 0;
      const char32_t first = rows.next(), second = rows.next();
      all.decomposed[code] = {first, second};
      all.acts[is_composed ? second : code] = true;
      if (is_composed) all.composed.put(first, second, {0, static_cast<TokenId>(code)});
    }
    code = 0;
    char32_t last = 0;
    for (PackedNumbers rows(compatibility); !rows.done();) {
      const auto head = rows.next();
      code += head / 32 + 1;
      auto& characters = all.compatible[code];
      for (auto left = head % 32; left > 0; --left) characters += last += static_cast<char32_t>(rows.next_signed());
    }
    for (char32_t i = 0; i < hangul::vowel_count; ++i) all.acts[hangul::vowels + i] = true;
    for (char32_t i = 1; i < hangul::trailing_count; ++i) all.acts[hangul::trailing + i] = true;
    return all;
  }();
  return tables;
}

void decompose(const FormTables& tables, char32_t code, std::u32string& out) {
  if (code - hangul::syllables < hangul::syllable_count) {
    const auto index = code - hangul::syllables;
    out += hangul::leading + index / (hangul::vowel_count * hangul::trailing_count);
    out += hangul::vowels + index / hangul::trailing_count % hangul::vowel_count;
    if (index % hangul::trailing_count != 0) out += hangul::trailing + index % hangul::trailing_count;
    return;
  }
  const auto found = tables.decomposed.find(code);
  if (found == tables.decomposed.end()) {
    out += code;
    return;
  }
  const auto& [first, second] = found->second;
  decompose(tables, first, out);
  if (second != 0) decompose(tables, second, out);
}

// Marks that follow each other, by their class.
void order_marks(const FormTables& tables, std::u32string& text) {
  for (std::size_t i = 0; i < text.size(); ++i) {
    auto end = i;
    while (end < text.size() && tables.combining[text[end]] != 0) ++end;
    std::ranges::stable_sort(std::span(text).subspan(i, end - i), {}, [&](char32_t c) { return tables.combining[c]; });
    i = std::max(i, end);
  }
}

char32_t composed(const FormTables& tables, char32_t first, char32_t second) {
  if (const auto syllable = hangul::compose(first, second); syllable != 0) return syllable;
  const auto* found = tables.composed.find(first, second);
  return found != nullptr ? static_cast<char32_t>(found->joined) : 0;
}

std::u32string compose(const FormTables& tables, const std::u32string& text) {
  std::u32string out;
  constexpr auto none = std::u32string::npos;
  auto starter = none;  // in `out`
  unsigned last = 0;    // the class of what stands last behind the starter
  for (const auto code : text) {
    const unsigned number = tables.combining[code];
    const bool is_blocked = starter != none && out.size() > starter + 1 && last >= number;
    if (starter != none && !is_blocked) {
      if (const auto one = composed(tables, out[starter], code); one != 0) {
        out[starter] = one;
        continue;
      }
    }
    if (number == 0) starter = out.size();
    last = number;
    out += code;
  }
  return out;
}

bool is_ascii(std::string_view text) {
  return std::ranges::all_of(text, [](char c) { return static_cast<unsigned char>(c) < 0x80; });
}

// True if each character of the text is in form C whatever is beside it.
bool is_surely_nfc(std::string_view text) {
  constexpr unsigned char first_lead = 0xCC;  // first byte of U+0300; nothing before it acts
  const auto is_low = [](char c) { return static_cast<unsigned char>(c) < first_lead; };
  if (std::ranges::all_of(text, is_low)) return true;
  for (std::size_t at = 0; at < text.size();) {
    const auto [code, size] = character_at(text, at);
    if (form_tables().acts[code]) return false;
    at += size;
  }
  return true;
}

}  // namespace

bool begins_anew(char32_t code) {
  return !form_tables().acts[code];
}

std::string in_form(NormalForm form, std::string_view text) {
  const bool composes = form == NormalForm::c || form == NormalForm::kc;
  const bool is_compatible = form == NormalForm::kc || form == NormalForm::kd;
  if (form == NormalForm::c ? is_surely_nfc(text) : is_ascii(text)) return std::string(text);
  const auto& tables = form_tables();
  std::u32string codes;
  for (std::size_t at = 0; at < text.size();) {
    const auto [code, size] = character_at(text, at);
    const auto found = is_compatible ? tables.compatible.find(code) : tables.compatible.end();
    if (found == tables.compatible.end()) {
      decompose(tables, code, codes);
    } else {
      codes += found->second;
    }
    at += size;
  }
  order_marks(tables, codes);
  if (composes) codes = compose(tables, codes);
  std::string result;
  result.reserve(text.size());
  for (const auto code : codes) append_utf8(result, code);
  return result;
}

}  // namespace vernier
