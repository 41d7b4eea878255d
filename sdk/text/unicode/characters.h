// Steps of `tokenizers` on single characters.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "normalizer_tables.h"

namespace vernier {

// The flags of every code point, 0x110000 of them: bits of char_flag. Made at the first call.
const std::vector<std::uint16_t>& char_flags();

// The text in small letters, one character at a time.
std::string in_lower_case(std::string_view text);

// The end of the grapheme cluster that begins at a byte (UAX #29), as far as clusters of less than six bytes need it.
std::size_t grapheme_end(std::string_view text, std::size_t at);

}  // namespace vernier
