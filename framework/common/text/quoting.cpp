#include "quoting.h"

#include <vernier/json_text.h>

#include <nlohmann/json.hpp>

namespace vernier {

std::string shell_quoted(const std::string& word) {
  constexpr const char* safe = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-+=./,:@%";
  if (!word.empty() && word.find_first_not_of(safe) == std::string::npos) return word;
  std::string text = "'";
  for (const char c : word) text += c == '\'' ? std::string("'\\''") : std::string(1, c);
  return text + "'";
}

// TOML's quotes are those of JSON, except for the character DEL.
std::string toml_quoted(const std::string& text) {
  using nlohmann::json;
  const auto quoted = json_text(json(text));
  std::string written;
  for (const char c : quoted) written += c == '\x7F' ? "\\u007F" : std::string(1, c);
  return written;
}

std::string csv_quoted(const std::string& text) {
  std::string result = "\"";
  for (const char c : text) result += c == '"' ? std::string("\"\"") : std::string(1, c);
  return result + '"';
}

}  // namespace vernier
