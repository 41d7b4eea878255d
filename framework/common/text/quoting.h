// Texts in quotes, as other programs read them.
#pragma once

#include <string>

namespace vernier {

std::string shell_quoted(const std::string& word);  // a word of a POSIX shell; one that needs no quotes stays as it is
std::string toml_quoted(const std::string& text);   // a basic string of TOML, in one line
std::string csv_quoted(const std::string& text);    // a field by RFC 4180

}  // namespace vernier
