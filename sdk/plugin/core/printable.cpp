#include <vernier/error.h>

#include <cstdint>
#include <cstdio>

namespace vernier {

namespace {

// Characters that turn the direction of the text around them, end a line, or cannot be seen: a terminal would show
// another text than there is. U+200C and U+200D join letters of some languages, and stay.
bool misleads(std::uint32_t code) {
  return code == 0x61c || code == 0x200b || code == 0x200e || code == 0x200f || (code >= 0x2028 && code <= 0x202e) ||
         (code >= 0x2060 && code <= 0x206f) || code == 0xfeff;
}

// The length of the UTF-8 character that begins here; 0 where none begins or where it is a control character.
std::size_t length_of_character(const std::string& text, std::size_t at) {
  const auto byte = [&](std::size_t i) { return i < text.size() ? static_cast<unsigned char>(text[i]) : 0u; };
  const auto first = byte(at);
  if (first < 0x80) return first >= 0x20 && first != 0x7f ? 1 : 0;
  if (first < 0xc2) return 0;  // a byte within a character, or too long a form
  const std::size_t length = first >= 0xf0 ? 4 : first >= 0xe0 ? 3 : 2;
  std::uint32_t code = first & (0x7fu >> length);
  for (std::size_t i = 1; i < length; ++i) {
    if ((byte(at + i) & 0xc0u) != 0x80u) return 0;
    code = code << 6 | (byte(at + i) & 0x3fu);
  }
  constexpr std::uint32_t smallest[] = {0xa0, 0x800, 0x10000};  // below: too long a form; U+0080 … U+009F: control
  const bool surrogate = code >= 0xd800 && code <= 0xdfff;
  return first <= 0xf4 && code >= smallest[length - 2] && code <= 0x10ffff && !surrogate && !misleads(code) ? length
                                                                                                            : 0;
}

// The place at or before `at` where no character is cut in two.
std::size_t boundary(const std::string& text, std::size_t at) {
  for (int back = 0; back < 3 && at > 0 && (static_cast<unsigned char>(text[at]) & 0xc0u) == 0x80u; ++back) --at;
  return at;
}

}  // namespace

std::string printable(const std::string& text, const std::string& kept) {
  std::string result;
  for (std::size_t at = 0; at < text.size();) {
    const auto length = kept.find(text[at]) != std::string::npos ? 1 : length_of_character(text, at);
    if (length > 0) {
      result.append(text, at, length);
      at += length;
    } else {
      char escape[5];
      std::snprintf(escape, sizeof escape, "\\x%02x", static_cast<unsigned char>(text[at++]));
      result += escape;
    }
  }
  return result;
}

std::string shortened(const std::string& text, std::size_t most) {
  if (text.size() <= most) return printable(text);
  const auto head = boundary(text, most / 2), tail = boundary(text, text.size() - most / 4);
  return printable(text.substr(0, head)) + "… (" + std::to_string(text.size()) + " bytes) …" +
         printable(text.substr(tail));
}

}  // namespace vernier
