#include "language_texts.h"

#include <vernier/data/readers.h>
#include <vernier/error.h>

#include <algorithm>

#include "data/readers/gunzip.h"
#include "text/jinja/values.h"

namespace vernier {

namespace {

constexpr std::size_t most_levels = 64;
constexpr std::string_view white = " \t\r\n";

// UTF-16 has them, and files of tokens.
void refuse_zeros(const MappedFile& file, std::string_view text) {
  const auto zero = text.find('\0');
  if (zero == std::string_view::npos) return;
  file.refuse("is not a text in UTF-8: byte " + std::to_string(zero) +
              " is 0; convert UTF-16 by iconv -f UTF-16 -t UTF-8, and name a file of tokens .bin");
}

void add(TokenizedText& text, const std::vector<TokenId>& ids, bool is_learned) {
  text.ids.insert(text.ids.end(), ids.begin(), ids.end());
  text.is_learned.resize(text.ids.size(), is_learned);
}

std::string_view trimmed(std::string_view text) {
  const auto first = text.find_first_not_of(white);
  if (first == std::string_view::npos) return {};
  return text.substr(first, text.find_last_not_of(white) + 1 - first);
}

template <class Call>
auto at_place(const std::string& where, const Call& call) {
  try {
    return call();
  } catch (const Error& error) {
    refuse(where + ": " + message(error));
  }
}

}  // namespace

LanguageTexts::LanguageTexts(const Tokenizer& tokenizer, const std::string& path, const LanguageDataOptions& options)
    : tokenizer_(tokenizer), options_(options), file_(MappedFile::open(path)) {
  require_known_fields(options);
  auto bytes = file_->bytes();
  if (Gunzip::is_packed(bytes)) {
    unpacked_ = gunzipped(*file_);
    bytes = unpacked_;
  }
  if (const auto format = other_format(bytes, path, ConvertTo::text)) {
    file_->refuse("is " + format->name + ", not a text" + (format->remedy.empty() ? "" : "; ") + format->remedy);
  }
  if (bytes.starts_with("\xEF\xBB\xBF")) bytes.remove_prefix(3);  // a byte-order mark
  const auto kind = language_file(path);
  const auto begin = bytes.find_first_not_of(white);
  is_array_ = kind == LanguageFile::array && begin != std::string_view::npos && bytes[begin] == '[';
  if (is_array_) {
    read_array(bytes.substr(begin));
  } else if (kind == LanguageFile::array || kind == LanguageFile::lines) {
    read_lines(bytes);
  } else {
    refuse_zeros(*file_, bytes);
    texts_.push_back({bytes, 0});
  }
}

void LanguageTexts::read_lines(std::string_view bytes) {
  for (std::size_t line = 1; !bytes.empty(); ++line) {
    const auto end = std::min(bytes.find('\n'), bytes.size());
    const auto text = bytes.substr(0, end);
    file_->check_line(line, text.size());
    if (!trimmed(text).empty()) texts_.push_back({text, line});
    bytes.remove_prefix(std::min(end + 1, bytes.size()));
  }
}

// Divides an array of JSON into its elements, each of which is parsed by itself.
void LanguageTexts::read_array(std::string_view bytes) {
  std::size_t begin = 1, depth = 0;
  bool is_quoted = false, is_open = true;
  for (std::size_t at = 1; at < bytes.size(); ++at) {
    const char c = bytes[at];
    if (is_quoted) {
      if (c == '\\') ++at;
      is_quoted = c != '"';
    } else if (!is_open) {
      if (white.find(c) == std::string_view::npos) file_->refuse("has text behind its JSON array");
    } else if (c == '"') {
      is_quoted = true;
    } else if (c == '{' || c == '[') {
      ++depth;
    } else if (depth > 0 && (c == '}' || c == ']')) {
      --depth;
    } else if (depth == 0 && (c == ',' || c == ']')) {
      const auto element = trimmed(bytes.substr(begin, at - begin));
      is_open = c == ',';
      begin = at + 1;
      if (is_open || !element.empty() || !texts_.empty()) texts_.push_back({element, texts_.size() + 1});
    }
  }
  if (is_open) file_->refuse("ends within its JSON array; make it again");
}

std::string LanguageTexts::where(std::size_t line) const {
  const auto path = "'" + file_->path() + "'";
  return line == 0 ? path : path + " " + unit() + " " + std::to_string(line);
}

Json LanguageTexts::parsed(std::size_t i) const {
  const auto& [bytes, line] = texts_[i];
  const auto place = where(line);
  const auto text = [&] {
    try {
      return parse_json(place, unit(), std::string(bytes), most_levels);
    } catch (const Error& error) {
      refuse(message(error));
    }
  }();
  if (!text.value.is_object()) refuse(place + " is not a JSON object, such as {\"text\": \"abc\"}");
  return text.value;
}

TokenizedText LanguageTexts::of_line(const LanguageLine& line, const std::string& where) const {
  auto result = line.form == LanguageLine::Form::messages ? of_messages(line.messages, where)
                : line.form == LanguageLine::Form::prompt ? of_prompt(line.prompt, line.completion, where)
                                                          : of_text(line.text, where);
  result.form = line.form;
  return result;
}

TokenizedText LanguageTexts::tokenized(std::size_t i) const {
  file_->require_unchanged();
  const auto& [bytes, line] = texts_[i];
  const auto place = where(line);
  if (line == 0) return of_text(std::string(bytes), place);
  return of_line(read_language_line(parsed(i), options_, place), place);
}

// The answers begin at one place, as in TRL: where the first of both does.
TokenizedPreference LanguageTexts::preference(std::size_t i) const {
  file_->require_unchanged();
  const auto place = where(texts_[i].line);
  if (texts_[i].line == 0) {
    refuse(place + " is one text, and preferences are lines of .jsonl or .json with prompt, chosen and rejected");
  }
  const auto line = read_preference_line(parsed(i), options_, place);
  TokenizedPreference pair{of_line(line.chosen, place), of_line(line.rejected, place)};
  if (line.chosen.form != LanguageLine::Form::prompt) return pair;
  const auto begin = [](const TokenizedText& text) { return std::ranges::find(text.is_learned, true); };
  const auto of_prompt = std::min(begin(pair.chosen) - pair.chosen.is_learned.begin(),
                                  begin(pair.rejected) - pair.rejected.is_learned.begin());
  for (auto* text : {&pair.chosen, &pair.rejected})
    std::fill(text->is_learned.begin() + of_prompt, text->is_learned.end(), true);
  return pair;
}

std::vector<TokenId> LanguageTexts::encode(const std::string& text, const std::string& where, bool special) const {
  return at_place(where, [&] { return tokenizer_.encode(text, special); });
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

TokenizedText LanguageTexts::of_messages(const std::vector<ChatMessage>& messages, const std::string& where) const {
  TokenizedText chat;
  if (!options_.template_folder.empty()) {
    // Texts that are not chats do not need a template that can be read.
    if (const std::lock_guard lock(template_mutex_); !template_) {
      template_.emplace(tokenizer_, options_.template_folder);
    }
    return at_place(where, [&] {
      return template_->tokenized(messages, static_cast<std::size_t>(options_.length), options_.learns_all);
    });
  }
  if (options_.chat == ChatStyle::llama3) add(chat, {token("<|begin_of_text|>")}, options_.learns_all);
  for (const auto& message : messages) add_message(message, chat);
  return chat;
}

void LanguageTexts::add_message(const ChatMessage& message, TokenizedText& chat) const {
  const auto& [role, content, is_learned] = message;
  const bool is_answer = is_learned || options_.learns_all;
  const bool is_chatml = options_.chat == ChatStyle::chatml;
  add(chat, {token(is_chatml ? "<|im_start|>" : "<|start_header_id|>")}, options_.learns_all);
  if (!is_chatml) {
    add(chat, tokenizer_.encode_plain(role, true), options_.learns_all);
    add(chat, {token("<|end_header_id|>")}, options_.learns_all);
  }
  const auto head = is_chatml ? role + "\n" : std::string("\n\n");
  const auto text = head + (is_chatml ? content : jinja::stripped(content, true, true));
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

std::string chat_template_of(const std::string& folder) {
  return ChatTemplate::source_in(folder);
}

std::string text_of_question(const std::string& question, const std::string& style, const std::string& folder) {
  const OrderedJson message = {{"role", "user"}, {"content", question}};
  const auto chats =
      style.empty() ? ChatTemplate::of_folder(folder).value() : ChatTemplate(style, "the style of chats");
  return chats.render_for_training(OrderedJson::array({message}), /*add_generation_prompt=*/true).text;
}

std::string end_of_answer(const Tokenizer& tokenizer, const LanguageDataOptions& options) {
  if (!options.template_folder.empty()) return TemplateChats(tokenizer, options.template_folder).end_of_answer();
  return options.chat == ChatStyle::chatml ? "<|im_end|>" : "<|eot_id|>";
}

}  // namespace vernier
