// JSON from a file whose origin need not be trusted.
#pragma once

#include <nlohmann/json.hpp>
#include <string>

namespace vernier {

using Json = nlohmann::json;

// Objects that name nothing twice, nested at most `deepest` deep. what: "header", for the refusal.
Json parse_json(const std::string& path, const std::string& what, const std::string& text, std::size_t deepest);

// A text as JSON has it. Refused where it is not UTF-8.
std::string quoted(const std::string& path, const std::string& text);

}  // namespace vernier
