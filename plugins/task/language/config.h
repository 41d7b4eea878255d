// The config.json of a published model folder, with the names and defaults of Hugging Face's transformers 5 and 4.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "network.h"

namespace language {

// Throws Error, with line and column, for what is not JSON. most: bytes.
nlohmann::json read_json(const std::string& path, std::uint64_t most);

// An object of the file. A key that is missing or null has the value that transformers takes for it. A value of another
// type, or out of range, throws Error with the file and the key.
class Config {
 public:
  // Reads FOLDER/config.json. Throws Error if it is not there, no JSON or no object.
  explicit Config(const std::string& folder);

  bool has(const char* key) const;  // there, and not null
  std::int64_t integer(const char* key, std::int64_t fallback, std::int64_t least = 1) const;
  double number(const char* key, double fallback, double least) const;
  bool flag(const char* key, bool fallback) const;
  std::string text(const char* key, const std::string& fallback) const;
  Config part(const char* key) const;  // an object; an empty one if the key is missing
  // Returns nothing for null, which is not a missing key here.
  std::optional<double> number_or_null(const char* key, std::optional<double> fallback, double least) const;
  std::vector<double> numbers(const char* key) const;  // a list; empty if the key is missing
  std::vector<std::string> texts(const char* key) const;

  // The value for a key that has no fallback.
  double require_number(const char* key, double least) const;
  [[noreturn]] void refuse(const std::string& key, const std::string& reason) const;
  std::string folder() const { return place_.substr(0, place_.rfind("/config.json")); }

 private:
  Config(std::string place, nlohmann::json object) : place_(std::move(place)), object_(std::move(object)) {}
  std::string place_;  // "DIR/config.json: " or "DIR/config.json: rope_parameters."
  nlohmann::json object_;
};

// Refuses what this program cannot read: another model_type than these, and weights that are packed by a quantisation.
// is_language_model: the refusal has the lines of Python by which task/graph trains the folder.
void require_model_type(const Config& config, const std::vector<std::string>& model_types, bool is_language_model);

// The function that a key such as activation_function names. Throws Error for a name that is not known.
Activation activation_of(const Config& config, const char* key, const std::string& fallback);

}  // namespace language
