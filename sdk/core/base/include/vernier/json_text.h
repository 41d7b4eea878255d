// The text of JSON. Needs no library.
#pragma once

#include <string>

namespace vernier {

// The text of a JSON value. Bytes that are not UTF-8, as in a file's name, become U+FFFD; nlohmann's own dump() throws.
// indent: spaces of a level; -1: all in one line. ascii: other characters are escaped.
template <class Json>
std::string json_text(const Json& json, int indent = -1, bool ascii = false) {
  return json.dump(indent, ' ', ascii, Json::error_handler_t::replace);
}

}  // namespace vernier
