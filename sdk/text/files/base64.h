// Base64 (RFC 4648, section 4).
#pragma once

#include <string>
#include <string_view>

namespace vernier {

// The bytes of a text. Throws Error for a text that is not base64.
std::string from_base64(std::string_view text);

}  // namespace vernier
