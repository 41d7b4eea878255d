// The forms of a line in a file of texts, as vernier/text/language_data.h lists them.
#pragma once

#include <vernier/text/language_data.h>

#include <algorithm>
#include <string>
#include <string_view>
#include <vector>

#include "files/json.h"

namespace vernier {

struct ChatMessage {
  std::string role, content;
  bool is_learned = false;  // it is an answer of the assistant
};

// A line in one of the three forms that all others come down to.
struct LanguageLine {
  enum class Form { text, prompt, messages };
  Form form = Form::text;
  std::string text{};                   // Form::text
  std::string prompt{}, completion{};   // Form::prompt
  std::vector<ChatMessage> messages{};  // Form::messages
};

// How many elements two sequences have in common at their beginning.
template <class Sequence>
std::size_t common(const Sequence& a, const Sequence& b) {
  return static_cast<std::size_t>(std::ranges::mismatch(a, b).in1 - a.begin());
}

struct TokenizedText {
  std::vector<TokenId> ids{};
  std::vector<bool> is_learned{};  // by id: it is learned as a target
  LanguageLine::Form form = LanguageLine::Form::text;
  bool goes_on = false;  // in the next row if it is longer than one
};

// Throws Error for a line of no known form, and for what is not read, such as calls of tools.
LanguageLine read_language_line(const Json& line, const LanguageDataOptions& options, const std::string& where);

// Both answers of a preference, each with the prompt: two lines of Form::prompt or two of Form::messages.
struct PreferenceLine {
  LanguageLine chosen, rejected;
};
PreferenceLine read_preference_line(const Json& line, const LanguageDataOptions& options, const std::string& where);

void require_known_fields(const LanguageDataOptions& options);

// The kind of a file by its name, whether or not it ends in .gz.
enum class LanguageFile { none, text, lines, array };
LanguageFile language_file(std::string_view path);

}  // namespace vernier
