#include "chat_template.h"

#include <vernier/data_file.h>
#include <vernier/error.h>

#include <algorithm>
#include <filesystem>

#include "text/files/tokenizer_config_files.h"
#include "text/jinja/operations.h"
#include "text/unicode/unicode.h"

namespace vernier {

namespace {

namespace fs = std::filesystem;

constexpr std::uint64_t largest = 16'000'000;  // bytes
constexpr std::size_t deepest = 64;

OrderedJson object_in(const fs::path& path) {
  std::error_code none;
  if (!fs::is_regular_file(path, none)) return OrderedJson::object();
  const auto parsed = parse_json("'" + path.string() + "'", "file", read_data_file(path.string(), largest), deepest);
  if (!parsed.value.is_object()) refuse("'" + path.string() + "' is not a JSON object");
  return OrderedJson(parsed.value);
}

// A token is a text, or an object with the text in "content".
OrderedJson text_of_token(const OrderedJson& token) {
  if (token.is_object() && token.contains("content")) return token["content"];
  return token;
}

// Classes of transformers that have no tokens of their own, so that one that is not named is undefined.
bool has_no_defaults(const OrderedJson& config) {
  const auto name = config.value("tokenizer_class", OrderedJson("PreTrainedTokenizerFast"));
  return name == "PreTrainedTokenizerFast" || name == "TokenizersBackend" || name == "PreTrainedTokenizer";
}

// The special tokens that a template may name.
OrderedJson variables_of(const fs::path& folder, const OrderedJson& config, const std::string& source) {
  const auto map = object_in(folder / "special_tokens_map.json");
  auto variables = OrderedJson::object();
  for (const auto* name : special_names) {
    // As in transformers, the map goes first, unless tokenizer_config.json has all tokens.
    const bool maps = map.contains(name) && !config.contains("added_tokens_decoder");
    const auto& from = maps ? map : config;
    if (from.contains(name)) {
      const auto token = text_of_token(from.at(name));
      if (token.is_string()) variables[name] = token;
    } else if (source.find(name) != std::string::npos && !has_no_defaults(config)) {
      refuse((folder / "tokenizer_config.json").string() + ": the chat template needs " + name +
             ", which is not named there; add it, or null for none");
    }
  }
  for (const auto& [name, token] : config.items()) {
    if (is_model_token(name, Json(token))) variables[name] = text_of_token(token);
  }
  const auto named = config.value("extra_special_tokens", OrderedJson());
  if (named.is_object()) {
    for (const auto& [name, token] : named.items()) variables[name] = text_of_token(token);
  }
  return variables;
}

// Gives what a model thought before an answer all names that templates know, as transformers does.
OrderedJson with_reasoning(OrderedJson messages) {
  for (auto& message : messages) {
    for (const auto* name : {"reasoning_content", "thinking", "reasoning"}) {
      if (!message.is_object() || !message.contains(name) || message[name].is_null()) continue;
      const auto reasoning = message[name];
      auto all = OrderedJson{{"thinking", reasoning}};
      all.update(message);
      all["reasoning_content"] = reasoning;
      message = std::move(all);
      break;
    }
  }
  return messages;
}

std::string source_of(const OrderedJson& config, const std::string& path) {
  if (!config.contains("chat_template") || config["chat_template"].is_null()) return "";
  const auto& given = config["chat_template"];
  if (given.is_string()) return given.get<std::string>();
  if (given.is_array()) {
    for (const auto& each : given) {
      if (each.is_object() && each.value("name", OrderedJson()) == "default" && each.contains("template") &&
          each["template"].is_string()) {
        return each["template"].get<std::string>();
      }
    }
  }
  refuse(path + ": chat_template is neither a text nor a list with one of the name \"default\"");
}

struct Found {
  std::string source, path;  // source: "" if there is no template
  OrderedJson config;
};

Found found_in(const fs::path& folder) {
  const auto path = folder / "tokenizer_config.json", file = folder / "chat_template.jinja";
  auto config = object_in(path);
  std::error_code none;
  const bool is_file = fs::is_regular_file(file, none);
  auto source = is_file ? read_data_file(file.string(), largest) : source_of(config, path.string());
  return {std::move(source), (is_file ? file : path).string(), std::move(config)};
}

}  // namespace

ChatTemplate::ChatTemplate(const std::string& source, std::string where, OrderedJson variables)
    : where_(std::move(where)), variables_(std::move(variables)) {
  if (valid_utf8(source) != source.size()) refuse(where_ + ": is not UTF-8");
  try {
    program_ = jinja::program_of(source);
  } catch (const Error& error) {
    refuse(where_ + ": the chat template, " + message(error));
  }
}

std::optional<ChatTemplate> ChatTemplate::of_folder(const std::string& folder) {
  const auto [source, path, config] = found_in(folder);
  if (source.empty()) return std::nullopt;
  return ChatTemplate(source, path, variables_of(folder, config, source));
}

std::string ChatTemplate::source_in(const std::string& folder) {
  return found_in(folder).source;
}

jinja::Run ChatTemplate::run(const OrderedJson& messages, bool add_generation_prompt, const OrderedJson& tools,
                             bool has_clock) const {
  auto globals = jinja::global_functions();
  if (!has_clock) std::erase_if(globals, [](const auto& global) { return global.first == "strftime_now"; });
  jinja::Run run(std::move(globals));
  try {
    for (const auto& [name, value] : variables_.items()) run.set(name, jinja::value_of(value));
    run.set("messages", jinja::value_of(with_reasoning(messages)));
    run.set("tools", jinja::value_of(tools));
    run.set("documents", jinja::None());
    run.set("add_generation_prompt", add_generation_prompt);
    program_(run);
  } catch (const std::exception& error) {
    const auto reason = message(error);
    const bool needs_clock = !has_clock && reason.find("strftime_now") != std::string::npos;
    refuse(where_ + ": the chat template, line " + std::to_string(run.line) + ": " + reason +
           (needs_clock ? "; a run must not depend on the day, so write a fixed date there" : ""));
  }
  return run;
}

std::string ChatTemplate::render(const OrderedJson& messages, bool add_generation_prompt,
                                 const OrderedJson& tools) const {
  return run(messages, add_generation_prompt, tools, /*has_clock=*/true).out;
}

ChatText ChatTemplate::render_for_training(const OrderedJson& messages, bool add_generation_prompt) const {
  auto done = run(messages, add_generation_prompt, nullptr, /*has_clock=*/false);
  return {std::move(done.out), std::move(done.generated)};
}

void require_messages(const OrderedJson& messages, const std::string& where) {
  const auto before = where.empty() ? "" : where + ": ";
  if (!messages.is_array() || messages.empty())
    refuse(before + "\"messages\" must be an array of messages, one at least");
  std::size_t number = 0;
  for (const auto& message : messages) {
    const auto place = before + "message " + std::to_string(++number);
    if (!message.is_object() || !message.contains("role") || !message["role"].is_string()) {
      refuse(place + " must be an object with a text in \"role\"");
    }
    const auto content = message.value("content", OrderedJson());
    if (!content.is_string() && !content.is_array()) refuse(place + " has no text in \"content\"");
    if (content.is_string()) continue;
    for (const auto& part : content) {
      const auto type = part.is_object() && part.contains("type") ? part["type"] : OrderedJson();
      const bool has_text = type != "text" || (part.contains("text") && part["text"].is_string());
      if (!has_text) refuse(place + " has a part of the type \"text\" without a text in \"text\"");
      if (type != "text") refuse(place + " has a part of the type " + json_text(type) + ", and only texts can be read");
    }
  }
}

}  // namespace vernier
