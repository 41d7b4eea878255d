#include "text/unicode/unicode.h"

#include <doctest/doctest.h>

#include <cstdlib>
#include <tuple>

#include "python.h"

namespace unicode_test {

using vernier::unfinished_utf8;
using vernier::valid_utf8;
using vernier::with_replacements;

TEST_CASE("unicode: bytes that are not UTF-8, as Python sees them") {
  struct Case {
    std::string bytes;
    std::size_t valid;     // bytes before the first mistake
    std::string replaced;  // R is U+FFFD
    std::size_t unfinished = 0;
  };
  const Case cases[] = {
      {"", 0, ""},
      {"plain text of more than eight bytes", 35, "plain text of more than eight bytes"},
      {"\xC3\xA9\xE4\xB8\xAD\xF0\x9F\x99\x82", 9, "\xC3\xA9\xE4\xB8\xAD\xF0\x9F\x99\x82"},
      {"ab\x80z", 2, "abRz"},
      {"\xE4\xBDz", 0, "Rz"},
      {"a\xE4\xBD", 1, "aR", 2},
      {"a\xF0\x9F\x99", 1, "aR", 3},
      {"a\xC3", 1, "aR", 1},
      {"\xED\xA0\x80", 0, "RRR"},       // a surrogate
      {"\xC0\xAF", 0, "RR"},            // overlong
      {"\xE0\x80\xAF", 0, "RRR"},       // overlong
      {"\xF4\x90\x80\x80", 0, "RRRR"},  // above U+10FFFF
      {"\xF5z", 0, "Rz"},
      {"12345678\xFF", 8, "12345678R"},
      {"\xED\xA0", 0, "RR"},  // nothing that follows can mend it
      {"a\xF4\x90", 1, "aRR"},
  };
  for (const auto& [bytes, valid, replaced, unfinished] : cases) {
    CAPTURE(bytes);
    CHECK(valid_utf8(bytes) == valid);
    CHECK(unfinished_utf8(bytes) == unfinished);
    std::string expected;
    for (const char c : replaced) expected += c == 'R' ? std::string("\xEF\xBF\xBD") : std::string(1, c);
    CHECK(with_replacements(bytes) == expected);
  }
}

TEST_CASE("unicode: characters forwards and backwards") {
  std::string text;
  const std::vector<char32_t> codes = {0, 0x7F, 0x80, 0x7FF, 0x800, 0xFFFF, 0x10000, 0x10FFFF, U'a'};
  for (const auto code : codes) vernier::append_utf8(text, code);
  REQUIRE(valid_utf8(text) == text.size());
  std::size_t at = 0;
  for (const auto code : codes) {
    const auto [found, size] = vernier::character_at(text, at);
    CHECK(found == code);
    CHECK(vernier::character_before(text, at + size) == at);
    at += size;
  }
  CHECK(at == text.size());
}

TEST_CASE("unicode: the classes of characters that changed between versions") {
  using vernier::CharClass;
  const std::pair<char32_t, CharClass> cases[] = {
      {U'a', CharClass::letter},   {0x10D4A, CharClass::letter},  // new in Unicode 16.0
      {U'7', CharClass::number},   {0x10D40, CharClass::number},  // new in Unicode 16.0
      {0x2167, CharClass::number}, {0x85, CharClass::white},     {0x3000, CharClass::white}, {0x180E, CharClass::other},
      {0xFEFF, CharClass::other},  {0x1C, CharClass::other},     {0x200B, CharClass::other}, {U'_', CharClass::other},
      {0x301, CharClass::other},   {0x10FFFF, CharClass::other}};
  for (const auto& [code, kind] : cases) {
    CAPTURE(static_cast<std::uint32_t>(code));
    CHECK(vernier::char_classes()[code] == kind);
  }
}

TEST_CASE("unicode: the tables are those that the package gives") {
  if (!has_python("tokenizers, unicodedata2, regex")) {
    MESSAGE("skipped: python3 has not the packages tokenizers, unicodedata2 and regex here");
    return;
  }
  const std::string tables = VERNIER_SOURCE_DIR "/sdk/text/unicode/";
  for (const std::string name : {"unicode_tables", "normalizer_tables"}) {
    const TemporaryFolder folder;
    std::string written;
    REQUIRE(python(tables + name + ".py", folder.path(), written) == 0);
    CHECK(written == read_text(tables + name + ".h"));
  }
}

}  // namespace unicode_test
