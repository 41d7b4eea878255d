// JSON of any source: what reads it, beside what writes it. Needs no library but nlohmann's.
#pragma once

#include <vernier/json_text.h>

#include <cmath>
#include <cstddef>
#include <istream>
#include <iterator>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <type_traits>
#include <vector>

namespace vernier {

// Returns why a JSON text is not to be parsed, or "". Values are copied, compared and written by recursion, so their
// depth is limited. An ordered object compares each new key with all that it has, so these comparisons are, too.
inline std::string trouble_with_json(std::string_view text, std::size_t deepest, double most_compared) {
  std::vector<double> keys;  // the number so far, for each open object or list
  double compared = 0;
  bool is_in_text = false;
  for (std::size_t at = 0; at < text.size(); ++at) {
    const char c = text[at];
    if (is_in_text && c == '\\') ++at;
    if (c == '"') is_in_text = !is_in_text;
    if (is_in_text) continue;
    if (c == '{' || c == '[') keys.push_back(0);
    if (keys.size() > deepest)
      return "nests values more than " + std::to_string(deepest) + " deep at byte " + std::to_string(at);
    if ((c == '}' || c == ']') && !keys.empty()) keys.pop_back();
    if (c == ':' && !keys.empty()) compared += keys.back()++;
    if (compared > most_compared) return "has objects with too many keys";
  }
  return "";
}

// Parses a JSON text. The value is discarded for what is not JSON, and for what has trouble_with_json(). It calls no
// callback of the parser, which would look through a whole list after each of its objects.
template <class Json>
Json json_in(std::string_view text, std::size_t deepest = 64) {
  constexpr double keys = std::is_same_v<Json, nlohmann::json> ? INFINITY : 4000;  // keys of an object on average
  const auto most = 1e8 + keys * static_cast<double>(text.size());
  if (!trouble_with_json(text, deepest, most).empty()) return Json(Json::value_t::discarded);
  return Json::parse(text, nullptr, /*allow_exceptions=*/false);
}

template <class Json>
Json json_in(std::istream& file, std::size_t deepest = 64) {
  return json_in<Json>(std::string(std::istreambuf_iterator<char>(file), {}), deepest);
}

// Returns the value at a path such as "/amp/amp_steps", or null where there is none, whatever the JSON is.
template <class Json>
Json value_at(const Json& json, const std::string& path) {
  const typename Json::json_pointer place(path);
  return json.contains(place) ? json.at(place) : Json();
}

}  // namespace vernier
