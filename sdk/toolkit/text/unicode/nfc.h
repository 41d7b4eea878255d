// Unicode's normalization form C, in which Qwen's tokenizers bring a text (UAX #15,
// https://www.unicode.org/reports/tr15).
#pragma once

#include <string>
#include <string_view>

namespace vernier {

// The text in form C. `text` is valid UTF-8.
std::string nfc(std::string_view text);

// True if each character of the text is in form C whatever is beside it, so that nfc() would not change it. It may be
// false for a text that nfc() does not change.
bool is_surely_nfc(std::string_view text);

// True if nothing before this character can change it or what follows it.
bool begins_anew(char32_t code);

}  // namespace vernier
