#include <vernier/error.h>

#include <algorithm>
#include <sstream>

#include "common/text/numbers.h"
#include "common/text/quoting.h"
#include "config.h"
#include "references.h"

namespace vernier {

namespace {

std::string toml_key(const std::string& key) {
  const bool is_bare = !key.empty() && std::ranges::all_of(key, [](unsigned char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_' || c == '-';
  });
  return is_bare ? key : toml_quoted(key);
}

std::string toml_number(double value) {
  const auto text = shortest_number(value);
  return text.find_first_of(".einf") == std::string::npos ? text + ".0" : text;
}

// The value in one line.
std::string toml_text(const Value& value) {
  std::string text;
  if (const auto* table = std::get_if<Table>(&value.data)) {
    for (const auto& [key, child] : *table) {
      text += (text.empty() ? "" : ", ") + toml_key(key) + " = " + toml_text(child);
    }
    return "{" + text + "}";
  }
  if (const auto* list = std::get_if<Array>(&value.data)) {
    for (const auto& child : *list) text += (text.empty() ? "" : ", ") + toml_text(child);
    return "[" + text + "]";
  }
  if (const auto* flag = std::get_if<bool>(&value.data)) return *flag ? "true" : "false";
  if (const auto* integer = std::get_if<std::int64_t>(&value.data)) return std::to_string(*integer);
  if (const auto* real = std::get_if<double>(&value.data)) return toml_number(*real);
  return toml_quoted(std::get<std::string>(value.data));
}

// before: the path of the table with a dot behind it, or "".
void write_toml(std::ostream& out, const Table& table, const std::string& before, bool with_places) {
  for (const auto& [key, value] : table) {
    if (std::holds_alternative<Table>(value.data) || is_list_of_tables(value)) continue;
    out << toml_key(key) << " = " << toml_text(value);
    if (with_places && !value.where.empty()) out << "  # " << printable(value.where);
    out << '\n';
  }
  for (const auto& [key, value] : table) {
    const auto path = before + toml_key(key);
    if (const auto* inner = std::get_if<Table>(&value.data)) {
      out << "\n[" << path << "]\n";
      write_toml(out, *inner, path + ".", with_places);
    } else if (is_list_of_tables(value)) {  // each has a header of its own
      for (const auto& entry : std::get<Array>(value.data)) {
        out << "\n[[" << path << "]]\n";
        write_toml(out, std::get<Table>(entry.data), path + ".", with_places);
      }
    }
  }
}

}  // namespace

std::string to_toml(const Table& config, bool with_places) {
  std::ostringstream text;
  write_toml(text, escaped(config), "", with_places);
  const auto written = text.str();
  return written.starts_with('\n') ? written.substr(1) : written;
}

}  // namespace vernier
