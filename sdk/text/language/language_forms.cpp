#include "language_forms.h"

#include <c10/util/StringUtil.h>
#include <vernier/error.h>

#include <algorithm>
#include <array>
#include <initializer_list>
#include <utility>

namespace vernier {

namespace {

using Form = LanguageLine::Form;

constexpr std::array<const char*, 13> mapped_names = {"text",     "prompt",        "completion",  "chosen", "rejected",
                                                      "messages", "conversations", "instruction", "input",  "output",
                                                      "system",   "role",          "content"};

// Stanford's, with a new line at the end, as torchtune has it.
constexpr const char* alpaca_begin = "Below is an instruction that describes a task";
constexpr const char* alpaca_with_input = ", paired with an input that provides further context";
constexpr const char* alpaca_task = ". Write a response that appropriately completes the request.\n\n";

bool is_nothing(const Json& value) {
  return value.is_null() || ((value.is_array() || value.is_object() || value.is_string()) && value.empty());
}

std::string fields_of(const Json& line) {
  std::vector<std::string> names;
  for (const auto& [name, value] : line.items()) names.push_back("'" + shortened(name) + "'");
  return names.empty() ? "no field" : "the fields " + some_of(names);
}

// One line of a file.
class LineForm {
 public:
  LineForm(const Json& line, const LanguageDataOptions& options, const std::string& where)
      : line_(line), options_(options), where_(where) {}
  LanguageLine read() const;
  PreferenceLine read_preference() const;

 private:
  [[noreturn]] void refuse(const std::string& reason) const { vernier::refuse(where_ + reason); }
  // True if `fields` of the options names fields of a line: the others are not looked at then.
  bool has_own_names() const;
  // The name in the file of a field of a form; "": the field is not read.
  std::string name_of(const char* field) const;
  const Json* find(const char* field) const;
  std::string text_of(const Json& object, const std::string& name) const;
  std::string needed(const char* field) const;
  std::string optional(const char* field) const;
  void refuse_unread_of_chat() const;
  void refuse_unread(const Json& object, std::initializer_list<const char*> names) const;
  std::string role_of(const std::string& word) const;
  ChatMessage message_of(const Json& message) const;
  std::vector<ChatMessage> messages_of(const Json& list, const std::string& name) const;
  LanguageLine of_messages(const char* field) const;
  LanguageLine of_prompt(const char* answer) const;
  LanguageLine of_whole_chat(const char* answer, std::size_t prompt) const;
  LanguageLine of_instruction() const;
  LanguageLine as_chat(std::string question, std::string answer) const;

  const Json& line_;
  const LanguageDataOptions& options_;
  const std::string& where_;
};

bool LineForm::has_own_names() const {
  return std::ranges::any_of(options_.fields,
                             [](const auto& entry) { return entry.first != "role" && entry.first != "content"; });
}

std::string LineForm::name_of(const char* field) const {
  if (const auto found = options_.fields.find(field); found != options_.fields.end()) return found->second;
  const bool is_of_message = std::string_view(field) == "role" || std::string_view(field) == "content";
  return has_own_names() && !is_of_message ? "" : field;
}

const Json* LineForm::find(const char* field) const {
  const auto name = name_of(field);
  const auto found = name.empty() ? line_.end() : line_.find(name);
  return found == line_.end() ? nullptr : &*found;
}

std::string LineForm::text_of(const Json& object, const std::string& name) const {
  const auto found = object.find(name);
  if (found == object.end() || !found->is_string()) {
    refuse(": the field '" + shortened(name) + "' is " +
           (found == object.end() ? "missing"
            : found->is_array()   ? "a list of parts, and must be one text"
                                  : "not a text"));
  }
  return found->get<std::string>();
}

std::string LineForm::needed(const char* field) const {
  const auto name = name_of(field);
  return text_of(line_, name.empty() ? field : name);
}

std::string LineForm::optional(const char* field) const {
  const auto* value = find(field);
  return value == nullptr || value->is_null() ? "" : text_of(line_, name_of(field));
}

void LineForm::refuse_unread(const Json& object, std::initializer_list<const char*> names) const {
  for (const auto* name : names) {
    const auto found = object.find(name);
    if (found == object.end() || is_nothing(*found)) continue;
    refuse(": the field '" + std::string(name) +
           "' changes the tokens of a chat, and is not read; remove it, or write the lines as prompt and completion");
  }
}

void LineForm::refuse_unread_of_chat() const {
  if (has_own_names()) return;
  refuse_unread(line_, {"tools", "functions", "documents", "chat_template_kwargs", "images", "image"});
}

std::string LineForm::role_of(const std::string& word) const {
  if (const auto found = options_.roles.find(word); found != options_.roles.end()) return found->second;
  constexpr std::pair<const char*, const char*> of_conversations[] = {{"human", "user"}, {"gpt", "assistant"}};
  for (const auto& [other, role] : of_conversations) {
    if (word == other) return role;
  }
  // Other words for "assistant", which nothing would be learned of.
  for (const auto* other : {"model", "bot", "chatbot", "chatgpt", "ai", "Assistant"}) {
    if (word == other) refuse(": the role '" + word + "' is not known; name it \"assistant\", or map it in `roles`");
  }
  for (const auto* other :
       {"tool", "function", "ipython", "function_call", "tool_call", "tool_response", "observation"}) {
    if (word == other) refuse(": the role '" + word + "' belongs to a call of tools, which is not read");
  }
  return word;
}

ChatMessage LineForm::message_of(const Json& message) const {
  const bool is_of_conversation = message.is_object() && options_.fields.count("role") == 0 && message.contains("from");
  const auto role = is_of_conversation ? "from" : name_of("role"),
             content = is_of_conversation ? "value" : name_of("content");
  if (!message.is_object()) refuse(": a message is not a JSON object with '" + role + "' and '" + content + "'");
  refuse_unread(message, {"tool_calls", "tool_call_id", "function_call", "reasoning", "reasoning_content", "thinking",
                          "train", "train_detail"});
  ChatMessage result{role_of(text_of(message, role)), text_of(message, content), false};
  result.is_learned = result.role == "assistant";
  if (const auto weight = message.find("weight"); weight != message.end() && !weight->is_null()) {
    if (*weight != 0 && *weight != 1) refuse(": the 'weight' of a message is not 0 or 1");
    result.is_learned = result.is_learned && *weight == 1;
  }
  return result;
}

std::vector<ChatMessage> LineForm::messages_of(const Json& list, const std::string& name) const {
  if (!list.is_array() || list.empty()) {
    refuse(": the field '" + shortened(name) + "' is not an array of messages");
  }
  std::vector<ChatMessage> messages;
  for (const auto& message : list) messages.push_back(message_of(message));
  return messages;
}

LanguageLine LineForm::of_messages(const char* field) const {
  refuse_unread_of_chat();
  LanguageLine result{.form = Form::messages};
  if (auto system = optional("system"); !system.empty())
    result.messages.push_back({"system", std::move(system), false});
  auto messages = messages_of(*find(field), name_of(field));
  if (!result.messages.empty() && messages.front().role == "system") {
    refuse(": there is a system message in '" + name_of("system") + "' and another in '" + name_of(field) + "'");
  }
  std::ranges::move(messages, std::back_inserter(result.messages));
  return result;
}

// Texts, or lists of messages, of which the first is the prompt.
LanguageLine LineForm::of_prompt(const char* answer) const {
  const auto* prompt = find("prompt");
  const auto* completion = find(answer);
  if (!prompt->is_array()) return {.form = Form::prompt, .prompt = needed("prompt"), .completion = needed(answer)};
  refuse_unread_of_chat();
  LanguageLine result{.form = Form::messages, .messages = messages_of(*prompt, name_of("prompt"))};
  for (auto& message : result.messages) message.is_learned = false;
  if (completion == nullptr) refuse(": the field '" + name_of(answer) + "' is missing");
  std::ranges::move(messages_of(*completion, name_of(answer)), std::back_inserter(result.messages));
  return result;
}

// A chat whose first messages are the prompt.
LanguageLine LineForm::of_whole_chat(const char* answer, std::size_t prompt) const {
  refuse_unread_of_chat();
  LanguageLine result{.form = Form::messages, .messages = messages_of(*find(answer), name_of(answer))};
  for (std::size_t i = 0; i < prompt; ++i) result.messages[i].is_learned = false;
  return result;
}

// As in TRL: without a prompt, both answers are chats that begin with it.
PreferenceLine LineForm::read_preference() const {
  const auto *prompt = find("prompt"), *chosen = find("chosen"), *rejected = find("rejected");
  if (chosen == nullptr || rejected == nullptr) {
    refuse(" has " + fields_of(line_) + "; a preference has chosen and rejected, and a prompt");
  }
  if (prompt != nullptr && !prompt->is_array() && chosen->is_array()) {
    refuse(": the prompt is a text, and '" + name_of("chosen") +
           "' a list of messages; if the messages begin with the prompt, set fields = {chosen = \"" +
           name_of("chosen") + "\", rejected = \"" + name_of("rejected") + "\"}, so that the prompt is not read");
  }
  if (prompt != nullptr) return {of_prompt("chosen"), of_prompt("rejected")};
  if (!chosen->is_array() || !rejected->is_array()) refuse(": the field 'prompt' is missing");
  const auto [end, other] = std::ranges::mismatch(*chosen, *rejected);
  const auto common = static_cast<std::size_t>(end - chosen->begin());
  return {of_whole_chat("chosen", common), of_whole_chat("rejected", common)};
}

LanguageLine LineForm::as_chat(std::string question, std::string answer) const {
  refuse_unread_of_chat();
  LanguageLine result{.form = Form::messages};
  auto& messages = result.messages;
  if (auto system = optional("system"); !system.empty()) messages.push_back({"system", std::move(system), false});
  messages.push_back({"user", std::move(question), false});
  messages.push_back({"assistant", std::move(answer), true});
  return result;
}

LanguageLine LineForm::of_instruction() const {
  const auto instruction = needed("instruction"), input = optional("input"), output = needed("output");
  if (!has_own_names()) refuse_unread(line_, {"history"});
  if (options_.instructions_as_chat) return as_chat(input.empty() ? instruction : instruction + "\n" + input, output);
  if (!optional("system").empty()) {
    refuse(": the prompt of Alpaca has no place for '" + name_of("system") + "'; set instructions = \"chat\"");
  }
  return {.form = Form::prompt,
          .prompt = c10::str(alpaca_begin, input.empty() ? "" : alpaca_with_input, alpaca_task, "### Instruction:\n",
                             instruction, input.empty() ? "" : "\n\n### Input:\n", input, "\n\n### Response:\n"),
          .completion = output};
}

LanguageLine LineForm::read() const {
  for (const auto* field : {"messages", "conversations"}) {
    if (find(field) != nullptr) return of_messages(field);
  }
  if (find("prompt") != nullptr) return of_prompt("completion");
  if (find("instruction") != nullptr) return of_instruction();
  if (find("text") != nullptr) return {.form = Form::text, .text = needed("text")};
  std::string known = "known are text, prompt with completion, instruction with output, messages, and conversations";
  if (!options_.fields.empty()) {
    std::vector<std::string> names;
    for (const auto& [name, field] : options_.fields) names.push_back(name + " = '" + shortened(field) + "'");
    known = "`fields` names " + some_of(names);
  }
  refuse(" has " + fields_of(line_) + "; " + known);
}

}  // namespace

LanguageLine read_language_line(const Json& line, const LanguageDataOptions& options, const std::string& where) {
  return LineForm(line, options, where).read();
}

PreferenceLine read_preference_line(const Json& line, const LanguageDataOptions& options, const std::string& where) {
  return LineForm(line, options, where).read_preference();
}

void require_known_fields(const LanguageDataOptions& options) {
  for (const auto& [name, field] : options.fields) {
    if (std::ranges::find(mapped_names, name) != mapped_names.end()) continue;
    std::string all;
    for (const auto* known : mapped_names) all += (all.empty() ? "" : ", ") + std::string(known);
    refuse("fields: no form has a field '" + shortened(name) + "'; there are " + all);
  }
  constexpr std::pair<const char*, const char*> pairs[] = {
      {"prompt", "completion"}, {"instruction", "output"}, {"chosen", "rejected"}};
  const bool are_preferences = options.fields.count("chosen") > 0;
  for (const auto& [one, other] : pairs) {
    if (options.fields.count(one) == options.fields.count(other)) continue;
    if (are_preferences && one == std::string_view("prompt")) continue;  // it has no completion
    const auto* missing = options.fields.count(one) == 0 ? one : other;
    refuse(c10::str("fields: ", one, " and ", other, " belong together; name the file's field of ", missing, " too"));
  }
}

LanguageFile language_file(std::string_view path) {
  if (path.ends_with(".gz")) path.remove_suffix(3);
  if (path.ends_with(".txt")) return LanguageFile::text;
  if (path.ends_with(".jsonl")) return LanguageFile::lines;
  return path.ends_with(".json") ? LanguageFile::array : LanguageFile::none;
}

bool has_texts(const std::string& path) {
  return language_file(path) != LanguageFile::none;
}

}  // namespace vernier
