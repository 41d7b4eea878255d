#include "service/api/job_check.h"

#include <glob.h>
#include <toml++/toml.h>

#include <algorithm>
#include <boost/algorithm/string/replace.hpp>
#include <climits>
#include <cstring>

#include "common/toml_depth.h"
#include "common/toml_text.h"
#include "service/http/http_server.h"

namespace serve {

namespace fs = std::filesystem;
using Json = nlohmann::ordered_json;

namespace {

std::string shown(std::string text) {
  if (text.size() > 200) text = text.substr(0, 200) + "…";
  std::ranges::replace_if(
      text, [](char c) { return static_cast<unsigned char>(c) < 32 || c == 127; }, '?');
  return text;
}

std::string quoted(const std::string& text) {
  return "\"" + shown(text) + "\"";
}

bool is_below(const fs::path& path, const fs::path& folder) {
  const auto [end, rest] = std::mismatch(folder.begin(), folder.end(), path.begin(), path.end());
  return end == folder.end();
}

// A text may have a path before or behind one of these, as in "/data/x.csv:a", "file:/etc" or "a=/b".
constexpr const char* separators = ":;,=|<> \t\n\"'()[]{}";
constexpr const char* pattern_signs = "*?[";

// Links on the way count: where they lead to must be below a data folder. So must each match of a pattern, which may
// have signs in its last part alone.
bool leads_below(const std::string& path, const std::vector<fs::path>& data) {
  std::error_code trouble;
  if (const auto sign = path.find_first_of(pattern_signs); sign != path.npos && !fs::exists(path, trouble)) {
    if (sign < path.rfind('/') || !leads_below(fs::path(path).parent_path(), data)) return false;
    glob_t found = {};
    const bool is_found = ::glob(path.c_str(), GLOB_NOSORT, nullptr, &found) == 0;
    const std::vector<std::string> matches(found.gl_pathv, found.gl_pathv + (is_found ? found.gl_pathc : 0));
    ::globfree(&found);
    for (const auto& match : matches) {
      if (match != path && !leads_below(match, data)) return false;
    }
  }
  const auto real = fs::weakly_canonical(path, trouble);
  return !trouble && std::ranges::any_of(data, [&](const fs::path& folder) { return is_below(real, folder); });
}

// A separator may follow a link or a pattern, as in "/data/link.csv:a".
bool is_allowed(const std::string& path, const std::vector<fs::path>& data) {
  if (!leads_below(path, data)) return false;
  for (auto end = path.find_first_of(separators); end < PATH_MAX; end = path.find_first_of(separators, end + 1)) {
    std::error_code trouble;
    const auto before = path.substr(0, end);
    const bool is_pattern = before.find_first_of(pattern_signs, path.rfind('/')) != before.npos;
    if ((is_pattern || fs::is_symlink(fs::symlink_status(before, trouble))) && !leads_below(before, data)) return false;
  }
  return true;
}

void check_text(const std::string& text, const std::string& where, const std::vector<fs::path>& data) {
  const auto refuse = [&](const std::string& why) {
    throw NotAllowed(shown(where) + " is " + quoted(text) + ": " + why);
  };
  if (text.find('\0') != text.npos) refuse("it has a NUL character");
  if (text.find("${") != text.npos) refuse("a job has no references; write the value itself");
  const bool is_path = text.starts_with('/');
  const auto of_rank = boost::replace_first_copy(text, "{rank}", "0");  // task/graph does that; a job has rank 0 alone
  if (is_path && !(is_allowed(text, data) && is_allowed(of_rank, data))) {
    refuse("this path is not below a data folder of the server; its option --data names them");
  }
  for (auto begin = is_path ? std::min(text.find_first_of(separators), text.size()) : 0; begin < text.size();) {
    auto end = std::min(text.find_first_of(separators, begin), text.size());
    const auto part = text.substr(begin, end - begin);
    if (part.starts_with('/') || part.starts_with('~')) {
      refuse("it could be a path; paths are below a data folder of the server, and stand alone");
    }
    for (const auto& step : fs::path(part)) {
      if (step == "..") refuse("a path must not have .. in it");
    }
    begin = end + 1;
  }
}

void check_use(const std::string& name, const std::string& where) {
  const bool is_name = !name.empty() && std::ranges::all_of(name, [](char c) {
    return (c >= 'a' && c <= 'z') || (c >= '0' && c <= '9') || c == '_';
  });
  if (!is_name) throw NotAllowed(shown(where) + " is " + quoted(name) + ": a job names plugins, and not files");
}

// Checks the address of a monitor; without one it does not listen.
void check_listen(const std::string& address, const std::string& where) {
  if (address.empty() || vernier::is_loopback(address)) return;
  throw NotAllowed(shown(where) + " is " + quoted(address) + ": a job listens at 127.0.0.1 only");
}

void check_node(const toml::node& node, const std::string& where, const std::vector<fs::path>& data) {
  if (const auto* table = node.as_table()) {
    for (const auto& [key, child] : *table) {
      const auto place = (where.empty() ? "" : where + ".") + std::string(key.str());
      check_text(std::string(key.str()), place + ": the key", data);  // a key may name a file, too
      if (key == "listen" || key == "use") {
        if (!child.is_string()) throw NotAllowed(shown(place) + " must be a text");
        (key == "use" ? check_use : check_listen)(child.as_string()->get(), place);
      }
      if (key == "operators")
        throw NotAllowed(shown(place) + ": a job names no libraries of operators, which are code");
      check_node(child, place, data);
    }
  } else if (const auto* array = node.as_array()) {
    for (const auto& child : *array) check_node(child, where, data);
  } else if (const auto* text = node.as_string()) {
    check_text(text->get(), where, data);
  }
}

template <class Node>
void insert(toml::table& table, const std::string& key, Node&& node) {
  table.insert_or_assign(key, std::forward<Node>(node));
}
template <class Node>
void insert(toml::array& array, const std::string&, Node&& node) {
  array.push_back(std::forward<Node>(node));
}

toml::table table_of(const Json& object, const std::string& where);

template <class Container>
void add(Container& into, const std::string& key, const Json& value, const std::string& where) {
  if (value.is_object()) return insert(into, key, table_of(value, where));
  if (value.is_boolean()) return insert(into, key, value.get<bool>());
  const bool is_large = value.is_number_unsigned() && value.get<std::uint64_t>() > INT64_MAX;
  if (value.is_number_integer() && !is_large) return insert(into, key, value.get<std::int64_t>());
  if (value.is_number()) return insert(into, key, value.get<double>());
  if (value.is_string()) return insert(into, key, value.get<std::string>());
  if (!value.is_array()) throw NotAllowed(shown(where) + " is null, which TOML has not");
  toml::array array;
  for (const auto& each : value) add(array, "", each, where);
  insert(into, key, std::move(array));
}

// toml++ 3.3 writes keys with these characters as text that is not TOML. check_text() refuses NUL.
void check_key(const std::string& key) {
  const bool is_plain =
      std::ranges::none_of(key, [](unsigned char c) { return (c < 32 && c != 0) || c == 127 || c == '\''; });
  if (!is_plain) throw NotAllowed("config has the key " + quoted(key) + ": it has a quote or a control character");
}

toml::table table_of(const Json& object, const std::string& where) {
  toml::table table;
  for (const auto& [key, value] : object.items()) {
    check_key(key);
    add(table, key, value, (where.empty() ? "" : where + ".") + key);
  }
  return table;
}

toml::table parsed(const std::string& text) {
  if (const int line = vernier::line_too_deep(text); line > 0) {
    throw NotAllowed("line " + std::to_string(line) + ": tables and lists are in each other too deeply");
  }
  try {
    return toml::parse(text);
  } catch (const toml::parse_error& error) {
    throw NotAllowed("line " + std::to_string(error.source().begin.line) + ": " + std::string(error.description()));
  }
}

}  // namespace

std::string checked_configuration(const Json& configuration, const std::vector<fs::path>& data) {
  if (!configuration.is_string() && !configuration.is_object()) {
    throw NotAllowed("config must be TOML text, or a JSON object");
  }
  const auto table = configuration.is_object() ? table_of(configuration, "") : parsed(configuration.get<std::string>());
  if (table.empty()) throw NotAllowed("config is empty");
  if (table.contains("include")) throw NotAllowed("include: a job includes no files; write all of it");
  check_node(table, "", data);
  if (configuration.is_string()) return configuration.get<std::string>();
  return vernier::toml_text(table);
}

Json configuration_schema() {
  return {{"minProperties", 1},
          {"not", {{"required", {"include"}}}},
          {"$ref", "#/components/schemas/Value"},
          {"type", "object"}};
}

// The schema of the texts that check_text() accepts. It allows fewer paths: below a data folder, each part of a path
// must be a plain name.
Json text_schema(const std::vector<fs::path>& data) {
  const std::string separator = R"(:;,=|<> \t\n"'()\[\]{})";
  std::string pattern = R"(^(?![/~])(?![\s\S]*[)" + separator + R"(][/~])(?![\s\S]*\$\{)(?!([\s\S]*[/)" + separator +
                        R"(])?\.\.([/)" + separator + R"(]|$))[^\u0000]*$)";
  for (const auto& folder : data) {
    std::string escaped;
    for (const char c : folder.string()) escaped += std::string(std::strchr("\\^$.|?*+()[]{}", c) ? "\\" : "") + c;
    pattern += "|^" + escaped + "(/[A-Za-z0-9_-][A-Za-z0-9_.-]*)*$";
  }
  return {{"type", "string"}, {"pattern", pattern}};
}

Json value_schema(const std::vector<fs::path>& data) {
  const Json value = {{"$ref", "#/components/schemas/Value"}}, text = text_schema(data);
  const Json table = {{"type", "object"},
                      {"propertyNames", {{"allOf", {text, Json{{"pattern", "^[^\\u0000-\\u001f\\u007f']*$"}}}}}},
                      {"properties",
                       {{"use", {{"type", "string"}, {"pattern", "^[a-z0-9_]+$"}}},
                        {"listen", {{"type", "string"}, {"pattern", "^(127\\.0\\.0\\.1:[1-5]?[0-9]{1,4})?$"}}}}},
                      {"additionalProperties", value}};
  return {
      {"description",
       "a value as TOML has them. Plugins are named, and paths are below the job's folder, or below a data folder "
       "of the server"},
      {"anyOf",
       {Json{{"type", "boolean"}}, Json{{"type", "number"}}, text, Json{{"type", "array"}, {"items", value}}, table}}};
}

void check_command(const Json& command, const std::vector<fs::path>& data) {
  check_node(table_of(command, ""), "", data);
}

}  // namespace serve
