// TOML of a table of toml++, whose own form of texts (3.3) is not always TOML again, or is another text.
#pragma once

#include <toml++/toml.h>

#include <sstream>
#include <string>

namespace vernier {

// Texts stand in one line, with escapes. A key with a single quote or a control character may still become no TOML.
inline std::string toml_text(const toml::table& table) {
  using toml::format_flags;
  constexpr auto flags = toml::toml_formatter::default_flags & ~format_flags::allow_literal_strings &
                         ~format_flags::allow_multi_line_strings;
  std::ostringstream text;
  text << toml::toml_formatter(table, flags) << '\n';
  return text.str();
}

}  // namespace vernier
