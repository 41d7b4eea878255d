// `normalizer` of tokenizer.json.
#include <vernier/error.h>

#include "base64.h"
#include "tokenizer_model.h"

namespace vernier {

namespace {

using Normal = NormalStep::Kind;
using Steps = std::vector<NormalStep>;

void read_bert(const JsonPart& part, Steps& steps) {
  const bool lower = part.flag("lowercase", true);
  if (part.flag("clean_text", true)) steps.push_back({.kind = Normal::clean});
  if (part.flag("handle_chinese_chars", true)) steps.push_back({.kind = Normal::space_chinese});
  if (part.flag("strip_accents", lower)) {
    steps.push_back({.kind = Normal::form_d});
    steps.push_back({.kind = Normal::strip_accents});
  }
  if (lower) steps.push_back({.kind = Normal::lower_case});
}

NormalStep replace_step(const JsonPart& part) {
  NormalStep step{.kind = Normal::replace, .to = part.member("content").text()};
  const auto pattern = read_pattern(part.member("pattern"));
  step.from = pattern.text;
  step.regex = pattern.regex;
  return step;
}

NormalStep map_step(const JsonPart& part) {
  const auto text = part.member("precompiled_charsmap");
  NormalStep step{.kind = Normal::character_map};
  try {
    step.map = std::make_shared<const CharacterMap>(from_base64(text.text()));
  } catch (const Error& error) {
    text.refuse(message(error));
  }
  return step;
}

void read_step(const JsonPart& part, Steps& steps) {
  const auto type = part.type();
  constexpr std::pair<std::string_view, Normal> plain[] = {
      {"NFC", Normal::form_c},   {"NFD", Normal::form_d},           {"NFKC", Normal::form_kc},
      {"NFKD", Normal::form_kd}, {"Lowercase", Normal::lower_case}, {"StripAccents", Normal::strip_marks},
      {"Nmt", Normal::nmt}};
  for (const auto& [name, kind] : plain) {
    if (type == name) return steps.push_back({.kind = kind});
  }
  if (type == "BertNormalizer") return read_bert(part, steps);
  if (type == "Replace") return steps.push_back(replace_step(part));
  if (type == "Precompiled") return steps.push_back(map_step(part));
  if (type == "Prepend") return steps.push_back({.kind = Normal::prepend, .to = part.member("prepend").text()});
  if (type != "Strip") {
    refuse_type(part,
                "NFC, NFD, NFKC, NFKD, Lowercase, Strip, StripAccents, Nmt, Precompiled, BertNormalizer, Replace, "
                "Prepend and Sequence");
  }
  NormalStep step{.kind = Normal::strip};
  step.at_begin = part.flag("strip_left", true);
  step.at_end = part.flag("strip_right", true);
  steps.push_back(step);
}

}  // namespace

void refuse_type(const JsonPart& part, const std::string& known) {
  part.refuse("is of the type '" + shortened(part.type()) + "'; Vernier has " + known);
}

std::vector<JsonPart> parts_of_sequence(const JsonPart& part, const char* name) {
  if (part.is_null()) return {};
  if (part.type() != "Sequence") return {part};
  std::vector<JsonPart> all;
  const auto list = part.member(name);
  for (std::size_t i = 0; i < list.size(); ++i) {
    for (auto& inner : parts_of_sequence(list[i], name)) all.push_back(std::move(inner));
  }
  return all;
}

Pattern read_pattern(const JsonPart& pattern) {
  const auto text = pattern.member("String"), regex = pattern.member("Regex");
  if (text.is_null()) return {"", compiled(regex, regex.text())};
  if (text.text().empty()) text.refuse("is empty");
  return {text.text(), nullptr};
}

std::shared_ptr<const Regex> compiled(const JsonPart& place, const std::string& expression) {
  try {
    return std::make_shared<const Regex>(expression);
  } catch (const Error& error) {
    place.refuse("is a regular expression that " + message(error));
  }
}

void read_normalizer(const JsonPart& normalizer, TokenizerFile& file) {
  for (const auto& part : parts_of_sequence(normalizer, "normalizers")) read_step(part, file.normalizer);
}

}  // namespace vernier
