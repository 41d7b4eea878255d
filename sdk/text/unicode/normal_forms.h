// Unicode's normalization forms (UAX #15, https://www.unicode.org/reports/tr15), as `tokenizers` has them.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace vernier {

enum class NormalForm : std::uint8_t { c, d, kc, kd };

// The text in a form. `text` is valid UTF-8.
std::string in_form(NormalForm form, std::string_view text);

// True if nothing before this character can change it or what follows it in form C.
bool begins_anew(char32_t code);

}  // namespace vernier
