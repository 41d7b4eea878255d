#include <vernier/error.h>

#include <doctest/doctest.h>

namespace printable_test {

using vernier::printable;
using vernier::shortened;

TEST_CASE("printable: UTF-8 stays, control characters and other bytes are escaped") {
  CHECK(printable("").empty());
  CHECK(printable("plain, ä, €, 😀, …") == "plain, ä, €, 😀, …");
  CHECK(printable("a\x1b[31m\r\n\t\x7f") == "a\\x1b[31m\\x0d\\x0a\\x09\\x7f");
  CHECK(printable(std::string("a\0b", 3)) == "a\\x00b");
  CHECK(printable("\xff\xc3") == "\\xff\\xc3");
  CHECK(printable("\xc2\x9b[31m") == "\\xc2\\x9b[31m");  // U+009B, which terminals take for ESC [
  CHECK(printable("\xc0\xaf\xed\xa0\x80\xf5\x80\x80\x80") == "\\xc0\\xaf\\xed\\xa0\\x80\\xf5\\x80\\x80\\x80");
  CHECK(printable("a\n\tb\x1b", "\n\t") == "a\n\tb\\x1b");
  for (const char* hidden : {"\u2028", "\u2029", "\u200b", "\u200f", "\u202e", "\u2060", "\u2066", "\u061c", "\ufeff"})
    CHECK(printable(hidden)[0] == '\\');
  CHECK(printable("\u2027 \u200d \u2010") == "\u2027 \u200d \u2010");
  const auto once = printable("\x1b\xff");
  CHECK(printable(once) == once);
}

TEST_CASE("printable: a long text loses its middle, and no character is cut") {
  CHECK(shortened("abcdefgh", 8) == "abcdefgh");
  CHECK(shortened("abcdefghi", 8) == "abcd… (9 bytes) …hi");
  const std::string begin(60, 'x'), end(30, 'x');
  CHECK(shortened(std::string(1 << 20, 'x')) == begin + "… (1048576 bytes) …" + end);
  CHECK(shortened("abcä" + std::string(9, 'e'), 8) == "abc… (14 bytes) …ee");
  CHECK(shortened(std::string(9, 'e') + "ä", 4) == "ee… (11 bytes) …ä");
  CHECK(shortened("\x1b", 8) == "\\x1b");
  CHECK(shortened(std::string(20, '\xbf'), 8).size() < 60);
}

}  // namespace printable_test
