// Helpers for files with routes: the names of a route's parts, and parts of the schemas by which routes describe what
// they take and answer. `using namespace vernier::schema;`
#pragma once

#include <cmath>
#include <cstdint>
#include <optional>
#include <utility>

#include "http_service.h"

namespace vernier::schema {

using vernier::HttpCall;
using vernier::HttpRefused;
using vernier::HttpResponse;
using vernier::HttpRoute;
using vernier::Json;
using vernier::json_response;
using vernier::Scope;

// All properties are required.
inline Json object_of(Json properties) {
  Json required = Json::array();
  for (const auto& [name, ignored] : properties.items()) required.push_back(name);
  return {{"type", "object"}, {"properties", std::move(properties)}, {"required", std::move(required)}};
}

inline Json list_of(const char* name, Json item, Json more = Json::object()) {
  more[name] = {{"type", "array"}, {"items", std::move(item)}};
  return object_of(std::move(more));
}

inline const Json integer = {{"type", "integer"}}, text = {{"type", "string"}}, real = {{"type", {"number", "null"}}};

inline Json parameter(const char* name, const char* in, const char* meaning, Json schema, bool required = false) {
  return {{"name", name}, {"in", in}, {"description", meaning}, {"required", required}, {"schema", std::move(schema)}};
}

inline Json whole(std::int64_t min, std::int64_t max) {
  return {{"type", "integer"}, {"minimum", min}, {"maximum", max}};
}

// A whole number as schemas have them, 3 or 3.0; nothing for any other value.
inline std::optional<std::int64_t> whole_in(const Json& value, std::int64_t min, std::int64_t max) {
  const auto number = value.is_number() ? value.get<double>() : 0.5;
  if (number != std::trunc(number) || number < static_cast<double>(min) || number > static_cast<double>(max)) return {};
  return value.is_number_float() ? static_cast<std::int64_t>(number) : value.get<std::int64_t>();
}

inline constexpr std::int64_t most = 1'000'000'000'000;  // ids

// Parts of equally many steps, as History has them.
inline Json history_of() {
  return object_of(
      {{"metric", text},
       {"points",
        {{"type", "array"}, {"items", {{"type", "array"}, {"items", {{"type", "number"}}}, {"minItems", 3}}}}}});
}

}  // namespace vernier::schema
