#include "tokenizer_json.h"

#include <vernier/error.h>

#include <algorithm>

namespace vernier {

namespace {

const Json no_json;

}  // namespace

void JsonPart::refuse(const std::string& what) const {
  vernier::refuse("'" + *path_ + "': " + (place_.empty() ? "it" : "`" + shortened(place_) + "`") + " " + what);
}

void JsonPart::require(bool holds, const char* what) const {
  if (!holds) refuse(what);
}

JsonPart JsonPart::member(const char* name) const {
  require(json_->is_object(), "is not a JSON object");
  const auto place = place_.empty() ? std::string(name) : place_ + "." + name;
  const auto found = json_->find(name);
  return {*path_, found == json_->end() ? no_json : *found, place};
}

JsonPart JsonPart::operator[](std::size_t i) const {
  require(json_->is_array() && i < json_->size(), "is not an array of that length");
  return {*path_, (*json_)[i], place_ + "[" + std::to_string(i) + "]"};
}

std::size_t JsonPart::size() const {
  if (is_null()) return 0;
  require(json_->is_array(), "is not an array");
  return json_->size();
}

const std::string& JsonPart::text() const {
  require(json_->is_string(), "is not a text");
  return json_->get_ref<const std::string&>();
}

bool JsonPart::flag(const char* name, bool otherwise) const {
  const auto value = member(name);
  if (value.is_null()) return otherwise;
  value.require(value.json_->is_boolean(), "is neither true nor false");
  return value.json_->get<bool>();
}

std::int64_t JsonPart::number() const {
  const bool fits = !json_->is_number_unsigned() || json_->get<std::uint64_t>() <= INT64_MAX;
  require(json_->is_number_integer() && fits, "is not a whole number of 64 bits");
  return json_->get<std::int64_t>();
}

void JsonPart::require_only(std::initializer_list<std::string_view> names) const {
  require(json_->is_object(), "is not a JSON object");
  for (const auto& [name, value] : json_->items()) {
    const bool is_known = std::ranges::find(names, std::string_view(name)) != names.end();
    if (!is_known && !value.is_null()) refuse("has the member '" + shortened(name) + "', which Vernier does not know");
  }
}

}  // namespace vernier
