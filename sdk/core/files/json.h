// JSON from files of any source, and of numbers that JSON does not have.
#pragma once

#include <vernier/abi.h>
#include <vernier/json_text.h>

#include <cmath>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>

namespace vernier {

using Json = nlohmann::json;
using OrderedJson = nlohmann::ordered_json;  // keeps the order in which keys were added

// A parsed JSON text. The destructor of Json allocates memory, and ends the process if there is none; this one does
// not.
struct VERNIER_API ParsedJson {
  ParsedJson() = default;
  ParsedJson(ParsedJson&&) = default;
  ParsedJson& operator=(ParsedJson&&) = delete;
  ~ParsedJson();
  Json value;
};

// Parses a text of `path`. Throws Error for a key that an object has twice and for more than `deepest` levels. `what`
// names the text in the message: "header".
VERNIER_API ParsedJson parse_json(const std::string& path, const std::string& what, const std::string& text,
                                  std::size_t deepest);

// A text in JSON's quotes. Throws Error, naming `path`, if it is not UTF-8.
VERNIER_API std::string quoted(const std::string& path, const std::string& text);

// Returns {"a": 1, "b": 2} or the like. of: returns the text of an item. Files that must be whole are written so: a
// tree of OrderedJson allocates memory where it is freed, and ends the process if there is none. A stream, as that of
// c10::Join(), swallows a failed allocation and leaves out the rest of the text.
template <class Items, class Of>
std::string joined(const char* open, const Items& items, const char* between, const char* close, const Of& of) {
  std::string text;
  bool is_first = true;
  for (const auto& item : items) text += (std::exchange(is_first, false) ? "" : between) + of(item);
  return open + text + close;
}

// JSON has no number for NaN and the infinities, so they become "nan", "inf" and "-inf".
inline Json json_number(double value) {
  if (std::isfinite(value)) return value;
  return std::isnan(value) ? "nan" : value > 0 ? "inf" : "-inf";
}

}  // namespace vernier
