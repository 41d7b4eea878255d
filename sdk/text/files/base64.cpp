#include "base64.h"

#include <vernier/error.h>

#include <cstdint>

namespace vernier {

std::string from_base64(std::string_view text) {
  constexpr std::string_view digits = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
  if (text.size() % 4 != 0) refuse("is not base64: its length is not a multiple of 4");
  auto rest = text;
  for (int i = 0; i < 2 && rest.ends_with('='); ++i) rest.remove_suffix(1);
  std::string bytes;
  bytes.reserve(text.size() / 4 * 3);
  std::uint32_t bits = 0;
  unsigned count = 0;
  for (const char c : rest) {
    const auto digit = digits.find(c);
    if (digit == std::string_view::npos) refuse("is not base64: it has another character");
    bits = bits << 6 | static_cast<std::uint32_t>(digit);
    count += 6;
    if (count < 8) continue;
    count -= 8;
    bytes += static_cast<char>(bits >> count & 0xFF);
  }
  return bytes;
}

}  // namespace vernier
