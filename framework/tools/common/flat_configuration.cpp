#include "flat_configuration.h"

namespace vernier {

namespace {

using Json = nlohmann::ordered_json;

void flatten(const Json& value, const std::string& path, std::map<std::string, std::string>& out) {
  const bool has_parts =
      (value.is_object() || value.is_array()) && !value.empty() && (value.is_object() || value[0].is_object());
  if (!has_parts) {
    out[path] = value.is_string() ? value.get<std::string>() : value.dump();
    return;
  }
  std::size_t index = 0;
  for (const auto& [key, part] : value.items()) {
    const bool is_named = value.is_array() && part.is_object() && part.contains("use") && part["use"].is_string();
    const auto name = is_named ? part["use"].get<std::string>() : value.is_array() ? std::to_string(index) : key;
    flatten(part, path.empty() ? name : path + "." + name, out);
    ++index;
  }
}

}  // namespace

std::map<std::string, std::string> flat_configuration(const Json& configuration) {
  std::map<std::string, std::string> all;
  if (configuration.is_object() && !configuration.empty()) flatten(configuration, "", all);
  return all;
}

}  // namespace vernier
