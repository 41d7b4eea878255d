// Texts that come from users or files, for messages: safe to print, and not too long.
#pragma once

#include <vernier/abi.h>

#include <string>

namespace vernier {

// Returns the text with control characters and bytes that are not UTF-8 as \x1b. The characters in `kept` stay.
VERNIER_API std::string printable(const std::string& text, const std::string& kept = "");

// The same of a text that has at most `most` bytes. A longer one loses its middle: "abc… (1048576 bytes) …xyz".
VERNIER_API std::string shortened(const std::string& text, std::size_t most = 120);

}  // namespace vernier
