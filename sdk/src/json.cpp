#include "json.h"

#include <set>
#include <vector>

#include "file.h"

namespace vernier {

// Which of two values of one key is meant, readers do not agree on.
Json parse_json(const std::string& path, const std::string& what, const std::string& text, int deepest) {
  const std::string the = "the " + what;
  // The parser takes a NUL for the end of the text and skips a byte-order mark.
  if (text.find('\0') != std::string::npos) fail(path, the + " is not JSON: it has a NUL");
  if (text.starts_with("\xEF\xBB\xBF")) fail(path, the + " is not JSON: it starts with a byte-order mark");
  std::vector<std::set<std::string>> keys;
  const auto check = [&](int depth, Json::parse_event_t event, Json& parsed) {
    if (depth > deepest) fail(path, the + " is nested too deeply");
    if (event == Json::parse_event_t::object_start) keys.emplace_back();
    if (event == Json::parse_event_t::object_end) keys.pop_back();
    if (event == Json::parse_event_t::key && !keys.back().insert(parsed.get<std::string>()).second) {
      fail(path, the + " has the key '" + parsed.get<std::string>() + "' twice");
    }
    return true;
  };
  try {
    return Json::parse(text, check);
  } catch (const Json::exception& error) {
    fail(path, the + " is not JSON: " + error.what());
  }
}

std::string quoted(const std::string& path, const std::string& text) {
  try {
    return Json(text).dump();
  } catch (const Json::exception&) {
    fail(path, "a name or text in the header is not UTF-8");
  }
}

}  // namespace vernier
