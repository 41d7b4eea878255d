// The text of JSON. Needs no library.
#pragma once

#include <string>

namespace vernier {

// What is not UTF-8 in it, such as a file's name, becomes U+FFFD; nlohmann's own dump() throws. indent: spaces of a
// level; -1: all in one line. ascii: other characters are written as \u1234.
template <class Json>
std::string json_text(const Json& json, int indent = -1, bool ascii = false) {
  return json.dump(indent, ' ', ascii, Json::error_handler_t::replace);
}

}  // namespace vernier
