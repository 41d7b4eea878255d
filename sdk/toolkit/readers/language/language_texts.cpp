#include "language_texts.h"

#include <vernier/error.h>

#include <algorithm>

#include "text/unicode/unicode.h"

namespace vernier {

namespace {

constexpr std::size_t most_levels = 64;
constexpr std::string_view white = " \t\r\n";

const std::string& text_of(const Json& object, const char* name, const std::string& where) {
  const auto found = object.find(name);
  if (found == object.end() || !found->is_string()) refuse(where + ": the field '" + name + "' is missing or no text");
  return found->get_ref<const std::string&>();
}

constexpr const char* known_fields = "known are text, prompt with completion, and messages";

std::string fields_of(const Json& line) {
  std::vector<std::string> names;
  for (const auto& [name, value] : line.items()) names.push_back("'" + shortened(name) + "'");
  return names.empty() ? "no field" : "the fields " + some_of(names);
}

// Other words for "assistant", which nothing would be learned of.
void refuse_synonym(const std::string& role, const std::string& where) {
  for (const auto* other : {"gpt", "model", "bot", "chatbot", "ai", "Assistant"}) {
    if (role == other) refuse(where + ": the role '" + role + "' is not known; name it \"assistant\"");
  }
}

// UTF-16 has them, and files of tokens.
void refuse_zeros(const MappedFile& file) {
  const auto zero = file.bytes().find('\0');
  if (zero == std::string_view::npos) return;
  file.refuse("is not a text in UTF-8: byte " + std::to_string(zero) +
              " is 0; convert UTF-16 by iconv -f UTF-16 -t UTF-8, and name a file of tokens .bin");
}

void add(TokenizedText& text, const std::vector<TokenId>& ids, bool is_learned) {
  text.ids.insert(text.ids.end(), ids.begin(), ids.end());
  text.is_learned.resize(text.ids.size(), is_learned);
}

std::size_t common(const std::vector<TokenId>& a, const std::vector<TokenId>& b) {
  const auto [end, other] = std::ranges::mismatch(a, b);
  return static_cast<std::size_t>(end - a.begin());
}

std::string_view trimmed(std::string_view text) {
  const auto first = text.find_first_not_of(white);
  if (first == std::string_view::npos) return {};
  return text.substr(first, text.find_last_not_of(white) + 1 - first);
}

// True for what Python's str.strip() removes, which is the filter `trim` of templates.
bool is_stripped(char32_t code) {
  return char_classes()[code] == CharClass::white || (code >= 0x1C && code <= 0x1F);
}

std::string_view stripped(std::string_view text) {
  while (!text.empty()) {
    const auto [code, size] = character_at(text, 0);
    if (!is_stripped(code)) break;
    text.remove_prefix(size);
  }
  while (!text.empty()) {
    const auto last = character_before(text, text.size());
    if (!is_stripped(character_at(text, last).code)) break;
    text = text.substr(0, last);
  }
  return text;
}

}  // namespace

LanguageTexts::LanguageTexts(const Tokenizer& tokenizer, const std::string& path, const LanguageDataOptions& options)
    : tokenizer_(tokenizer), options_(options), file_(MappedFile::open(path)) {
  auto bytes = file_->bytes();
  if (bytes.starts_with("\xEF\xBB\xBF")) bytes.remove_prefix(3);  // a byte-order mark
  if (!path.ends_with(".jsonl")) {
    refuse_zeros(*file_);
    texts_.push_back({bytes, 0});
    return;
  }
  for (std::size_t line = 1; !bytes.empty(); ++line) {
    const auto end = std::min(bytes.find('\n'), bytes.size());
    const auto text = bytes.substr(0, end);
    file_->check_line(line, text.size());
    if (!trimmed(text).empty()) texts_.push_back({text, line});
    bytes.remove_prefix(std::min(end + 1, bytes.size()));
  }
}

TokenizedText LanguageTexts::tokenized(std::size_t i) const {
  file_->require_unchanged();
  const auto& [bytes, line] = texts_[i];
  auto where = "'" + file_->path() + "'";
  if (line == 0) return of_text(std::string(bytes), where);
  where += " line " + std::to_string(line);
  const auto parsed = [&] {
    try {
      return parse_json(where, "line", std::string(bytes), most_levels);
    } catch (const Error& error) {
      refuse(message(error));
    }
  }();
  if (!parsed.value.is_object()) refuse(where + " is not a JSON object, such as {\"text\": \"abc\"}");
  return of_line(parsed.value, where);
}

std::vector<TokenId> LanguageTexts::encode(const std::string& text, const std::string& where, bool special) const {
  try {
    return tokenizer_.encode(text, special);
  } catch (const Error& error) {
    refuse(where + ": " + message(error));
  }
}

TokenId LanguageTexts::token(const char* name) const {
  if (const auto id = tokenizer_.id(name)) return *id;
  refuse(std::string("the tokenizer has no token '") + name +
         "', which the style of the chats needs; set chat to the style that it has, chatml or llama3, or write the "
         "chats as prompt and completion");
}

TokenizedText LanguageTexts::of_text(const std::string& text, const std::string& where) const {
  TokenizedText result;
  result.goes_on = true;
  if (text.empty()) return result;
  add(result, encode(text, where, true), true);
  const auto end = tokenizer_.end_of_text();
  if (end && (result.ids.empty() || result.ids.back() != *end)) add(result, {*end}, true);
  return result;
}

TokenizedText LanguageTexts::of_line(const Json& line, const std::string& where) const {
  if (line.contains("messages")) return of_messages(line["messages"], where);
  if (line.contains("prompt")) {
    return of_prompt(text_of(line, "prompt", where), text_of(line, "completion", where), where);
  }
  if (!line.contains("text")) refuse(where + " has " + fields_of(line) + "; " + known_fields);
  return of_text(text_of(line, "text", where), where);
}

// The prompt is what both have in common, as in TRL: a token may reach over the place between prompt and completion.
TokenizedText LanguageTexts::of_prompt(const std::string& prompt, const std::string& completion,
                                       const std::string& where) const {
  TokenizedText result;
  auto ids = encode(prompt + completion, where, true);
  const auto of_prompt = std::min(common(ids, encode(prompt, where, true)), ids.size());
  const auto end = tokenizer_.end_of_text();
  if (end && (ids.empty() || ids.back() != *end)) ids.push_back(*end);
  add(result, ids, true);
  if (options_.learns_all) return result;
  std::fill_n(result.is_learned.begin(), of_prompt, false);
  return result;
}

TokenizedText LanguageTexts::of_messages(const Json& messages, const std::string& where) const {
  if (!messages.is_array() || messages.empty()) refuse(where + ": the field 'messages' is not an array of messages");
  TokenizedText chat;
  chat.is_chat = true;
  if (options_.chat == ChatStyle::llama3) add(chat, {token("<|begin_of_text|>")}, options_.learns_all);
  for (const auto& message : messages) {
    if (!message.is_object()) refuse(where + ": a message is not a JSON object with 'role' and 'content'");
    const auto& role = text_of(message, "role", where);
    refuse_synonym(role, where);
    add_message(role, text_of(message, "content", where), chat);
  }
  return chat;
}

void LanguageTexts::add_message(const std::string& role, std::string_view content, TokenizedText& chat) const {
  const bool is_answer = role == "assistant" || options_.learns_all;
  const bool is_chatml = options_.chat == ChatStyle::chatml;
  add(chat, {token(is_chatml ? "<|im_start|>" : "<|start_header_id|>")}, options_.learns_all);
  if (!is_chatml) {
    add(chat, tokenizer_.encode_plain(role, true), options_.learns_all);
    add(chat, {token("<|end_header_id|>")}, options_.learns_all);
  }
  const auto head = is_chatml ? role + "\n" : std::string("\n\n");
  const auto text = head + std::string(is_chatml ? content : stripped(content));
  const auto ids = tokenizer_.encode_plain(text, true);
  const auto of_head = common(ids, tokenizer_.encode_plain(head, true));
  const auto begin = chat.ids.size();
  add(chat, ids, is_answer);
  if (!options_.learns_all) {
    std::fill_n(chat.is_learned.begin() + static_cast<std::ptrdiff_t>(begin), of_head, false);
  }
  add(chat, {token(is_chatml ? "<|im_end|>" : "<|eot_id|>")}, is_answer);
  if (is_chatml) add(chat, tokenizer_.encode_plain("\n", true), options_.learns_all);
}

}  // namespace vernier
