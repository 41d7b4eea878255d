// Parts of tokenizer.json, checked while they are read.
#pragma once

#include <vernier/error.h>

#include <string>

#include "files/json.h"

namespace vernier {

// A text of a file in a message.
inline std::string in_quotes(std::string_view text) {
  return "'" + shortened(std::string(text)) + "'";
}

// A value in a JSON file, which names file and place in its errors.
class JsonPart {
 public:
  JsonPart(const std::string& path, const Json& json, std::string place = "")
      : path_(&path), json_(&json), place_(std::move(place)) {}

  const Json& json() const { return *json_; }
  bool is_null() const { return json_->is_null(); }
  [[noreturn]] void refuse(const std::string& what) const;

  JsonPart member(const char* name) const;   // null if there is none
  JsonPart operator[](std::size_t i) const;  // an item of an array
  std::size_t size() const;                  // size of an array; 0 for null
  const std::string& text() const;
  bool flag(const char* name, bool otherwise) const;
  std::int64_t number() const;  // whole
  std::string type() const { return member("type").text(); }
  // Refuses an object that has a member beside these, since it may mean something.
  void require_only(std::initializer_list<std::string_view> names) const;

 private:
  void require(bool holds, const char* what) const;
  const std::string* path_;
  const Json* json_;
  std::string place_;  // "model.vocab"
};

}  // namespace vernier
