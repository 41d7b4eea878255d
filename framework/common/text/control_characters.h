// Control characters of a text in UTF-8: those that terminals obey, also U+0080 to U+009F, and those that turn the
// direction of the text around them. It is what printable() of the SDK escapes, for programs without LibTorch.
#pragma once

#include <cstddef>
#include <string>

namespace vernier {

// Returns the length of the control character that begins at `at`; 0 if none does.
inline std::size_t control_character_at(const std::string& text, std::size_t at) {
  const auto byte = [&](std::size_t i) { return i < text.size() ? static_cast<unsigned char>(text[i]) : 0U; };
  const auto first = byte(at), second = byte(at + 1), third = byte(at + 2);
  if (first < 32 || first == 127) return 1;
  const bool is_second = second >= 0x80 && second < 0xC0;
  if (!is_second) return 0;
  if ((first == 0xC2 && second < 0xA0) || (first == 0xD8 && second == 0x9C)) return 2;
  if (first != 0xE2) return 0;
  const bool is_mark = second == 0x80 && (third == 0x8E || third == 0x8F || (third >= 0xAA && third <= 0xAE));
  const bool is_isolate = second == 0x81 && third >= 0xA6 && third <= 0xA9;
  return is_mark || is_isolate ? 3 : 0;
}

inline bool has_control_character(const std::string& text) {
  for (std::size_t i = 0; i < text.size(); ++i) {
    if (control_character_at(text, i) > 0) return true;
  }
  return false;
}

// Puts a question mark in the place of each control character but those in `kept`, and of each byte that is within no
// character.
inline std::string without_control_characters(const std::string& text, const std::string& kept = "") {
  std::string result;
  std::size_t rest = 0;  // bytes that the character still needs
  for (std::size_t i = 0; i < text.size();) {
    const auto first = static_cast<unsigned char>(text[i]);
    const auto length = kept.find(text[i]) == kept.npos ? control_character_at(text, i) : 0;
    const bool is_stray = length == 0 && rest == 0 && first >= 0x80 && first < 0xC2;
    if (length > 0 || is_stray) {
      result += '?';
      i += length > 0 ? length : 1;
      rest = 0;
      continue;
    }
    rest = first >= 0xF0 ? 3 : first >= 0xE0 ? 2 : first >= 0xC2 ? 1 : rest > 0 ? rest - 1 : 0;
    result += text[i++];
  }
  return result;
}

}  // namespace vernier
