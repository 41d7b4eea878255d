#include "token_note.h"

#include <vernier/data_file.h>
#include <vernier/error.h>
#include <vernier/json_in.h>

#include <filesystem>

#include "files/json.h"
#include "token_layout.h"

namespace vernier {

namespace {

constexpr const char* format_of_note = "vernier tokens 1";
constexpr std::uint64_t longest_note = 1'000'000;  // bytes

}  // namespace

std::string note_path(const std::string& tokens) {
  return tokens + ".json";
}

std::string text_of(const TokenNote& note) {
  OrderedJson json;
  json["format"] = format_of_note;
  json["type"] = note.type;
  json["tokens"] = note.tokens;
  json["vocabulary"] = note.vocabulary;
  json["tokenizer"] = note.tokenizer;
  return json_text(json, 2) + "\n";
}

std::optional<TokenNote> read_token_note(const std::string& tokens) {
  const auto path = note_path(tokens);
  std::error_code none;
  if (!std::filesystem::exists(path, none)) return std::nullopt;
  const auto text = read_data_file(path, longest_note);
  const auto json = json_in<Json>(text);
  const auto has = [&](const char* key, auto is) { return json.contains(key) && (json[key].*is)(); };
  const bool is_note = json.is_object() && has("format", &Json::is_string) && json["format"] == format_of_note &&
                       has("type", &Json::is_string) && has("tokens", &Json::is_number_unsigned) &&
                       has("vocabulary", &Json::is_number_unsigned) && has("tokenizer", &Json::is_string);
  if (!is_note || width_of_token(json["type"].get<std::string>()) == 0) {
    refuse("'" + path + "' is not a note of vernier tokenize, and '" + tokens +
           "' needs one in its place or none; move it away");
  }
  return TokenNote{json["type"].get<std::string>(), json["tokens"].get<std::int64_t>(),
                   json["vocabulary"].get<std::int64_t>(), json["tokenizer"].get<std::string>()};
}

}  // namespace vernier
