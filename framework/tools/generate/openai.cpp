#include "openai.h"

#include <vernier/error.h>
#include <vernier/json_text.h>

#include <algorithm>
#include <cmath>
#include <random>

#include "limits.h"

namespace vernier::openai {

namespace {

constexpr std::int64_t most_choices = 128, most_likeliest = 20;

// The fields of a request. One that is null counts as missing, as in OpenAI's clients.
class Fields {
 public:
  explicit Fields(const Body& body) : body_(body) {}

  const Body* find(const char* name) {
    known_.emplace_back(name);
    const auto found = body_.find(name);
    return found == body_.end() || found->is_null() ? nullptr : &*found;
  }
  template <class Number>
  void read(const char* name, Number& into, limits::Range range) {
    const auto* value = find(name);
    if (value == nullptr) return;
    const bool is_right =
        value->is_number() && value->get<double>() >= range.least && value->get<double>() <= range.most;
    if (!is_right || (std::is_integral_v<Number> && std::floor(value->get<double>()) != value->get<double>())) {
      fail(name, c10::str("must be a number from ", range.least, " to ", range.most));
    }
    into = value->is_number_integer() ? value->get<Number>() : static_cast<Number>(value->get<double>());
  }
  bool flag(const char* name) {
    const auto* value = find(name);
    if (value == nullptr) return false;
    if (!value->is_boolean()) fail(name, "must be true or false");
    return value->get<bool>();
  }
  // Called for what is not supported: it may have the value that changes nothing.
  void refuse_unless(const char* name, const Body& neutral) {
    const auto* value = find(name);
    if (value == nullptr || *value == neutral || (value->is_structured() && value->empty())) return;
    fail(name, "is not supported");
  }
  void skip(const char* name) { find(name); }
  void refuse_others() const {
    for (const auto& [name, value] : body_.items()) {
      if (std::ranges::find(known_, name) == known_.end() && !value.is_null())
        refuse("'" + printable(name) + "' is not supported");
    }
  }
  [[noreturn]] static void fail(const char* name, const std::string& reason) {
    refuse("'" + std::string(name) + "' " + reason);
  }

 private:
  const Body& body_;
  std::vector<std::string> known_;
};

void read_stops(Fields& fields, std::vector<std::string>& stops) {
  const auto* stop = fields.find("stop");
  if (stop == nullptr) return;
  for (const auto& each : stop->is_array() ? *stop : Body::array({*stop})) {
    if (!each.is_string() || each.get_ref<const std::string&>().empty())
      Fields::fail("stop", "must be a text, or a list of texts");
    stops.push_back(each.get<std::string>());
  }
}

void read_sampling(Fields& fields, GenerationSettings& settings) {
  auto& sampling = settings.options.sampling;
  fields.read("temperature", sampling.temperature, limits::temperature);
  fields.read("top_p", sampling.top_p, limits::top_p);
  fields.read("top_k", sampling.top_k, limits::top_k);
  fields.read("min_p", sampling.min_p, limits::min_p);
  fields.read("repetition_penalty", sampling.repetition_penalty, limits::repetition_penalty);
  std::int64_t seed = -1;
  fields.read("seed", seed, {0, 9e15});
  std::random_device random;
  settings.seed = seed >= 0 ? static_cast<std::uint64_t>(seed) : std::uint64_t{random()} << 32 | random();
  fields.read("max_tokens", settings.options.max_tokens, limits::max_tokens);
  fields.read("max_completion_tokens", settings.options.max_tokens, limits::max_tokens);
  fields.read("min_tokens", settings.options.min_tokens, limits::min_tokens);
  fields.read("n", settings.count, {1, most_choices});
  read_stops(fields, settings.stops);
  fields.refuse_unless("presence_penalty", 0);
  fields.refuse_unless("frequency_penalty", 0);
  fields.refuse_unless("logit_bias", Body::object());
}

// A chat says whether, and then how many; a completion says how many.
void read_likeliest(Fields& fields, bool is_chat, GenerationOptions& options) {
  options.likeliest = -1;
  if (!is_chat) return fields.read("logprobs", options.likeliest, {0, most_likeliest});
  const bool wants = fields.flag("logprobs");
  std::int64_t likeliest = 0;
  fields.read("top_logprobs", likeliest, {0, most_likeliest});
  if (wants) options.likeliest = likeliest;
}

// Text parts become one text, since most templates take no parts, and a developer's message is the system's. Other
// roles than templates know would vanish in most of them.
Body plain(Body messages) {
  if (!messages.is_array()) return messages;
  for (auto& message : messages) {
    const auto role = message.is_object() ? message.value("role", Body()) : Body();
    if (role == "developer") message["role"] = "system";
    const bool is_known = role == "developer" || role == "system" || role == "user" || role == "assistant";
    if (role.is_string() && !is_known)
      Fields::fail("messages", "has the role " + role.dump() + ", and takes system, developer, user and assistant");
    const bool has_parts = message.is_object() && message.contains("content") && message["content"].is_array();
    if (!has_parts) continue;
    std::string text;
    bool is_text = true;
    for (const auto& part : message["content"]) {
      is_text = is_text && part.is_object() && part.contains("text") && part["text"].is_string();
      if (is_text) text += (text.empty() ? "" : "\n") + part["text"].get<std::string>();
    }
    if (is_text) message["content"] = text;
  }
  return messages;
}

std::vector<TokenId> tokens_of(const Body& list) {
  constexpr const char* reason = "must be a text, or a list of texts or of tokens";
  if (!list.is_array()) Fields::fail("prompt", reason);
  std::vector<TokenId> tokens;
  for (const auto& each : list) {
    if (!each.is_number_integer() || each < 0 || each > INT32_MAX) Fields::fail("prompt", reason);
    tokens.push_back(each.get<TokenId>());
  }
  return tokens;
}

std::vector<std::vector<TokenId>> prompts_in(Fields& fields, const Generator& generator, std::int64_t count) {
  const auto* prompt = fields.find("prompt");
  if (prompt == nullptr) Fields::fail("prompt", "is missing");
  const bool is_list = prompt->is_array() && !prompt->empty() && !prompt->front().is_number();
  const auto choices = (is_list ? std::ssize(*prompt) : 1) * count;
  if (choices > most_choices)
    refuse(c10::str("the request asks for ", choices, " texts, and ", most_choices, " are the most"));
  std::vector<std::vector<TokenId>> prompts;
  for (const auto& each : is_list ? *prompt : Body::array({*prompt})) {
    prompts.push_back(each.is_string() ? generator.tokens_of({{"prompt", each}}, "") : tokens_of(each));
  }
  return prompts;
}

void read_chat(Fields& fields, const Generator& generator, Request& request) {
  for (const char* name : {"tools", "functions", "tool_choice", "function_call", "modalities", "audio", "prediction",
                           "reasoning_effort", "web_search_options"}) {
    fields.refuse_unless(name, "none");
  }
  for (const char* name : {"parallel_tool_calls", "verbosity"}) fields.skip(name);
  fields.refuse_unless("response_format", {{"type", "text"}});
  const auto* messages = fields.find("messages");
  if (messages == nullptr) Fields::fail("messages", "is missing");
  request.prompts = {generator.tokens_of({{"messages", plain(*messages)}}, "messages")};
}

void read_completion(Fields& fields, const Generator& generator, Request& request) {
  fields.refuse_unless("echo", false);
  fields.refuse_unless("suffix", "");
  const auto* best = fields.find("best_of");
  if (best != nullptr && *best != request.settings.count) Fields::fail("best_of", "is not supported");
  request.prompts = prompts_in(fields, generator, request.settings.count);
}

// Before the answer begins, because a stream has sent its status by then.
void require_possible(const Request& request, const LanguageModel& model) {
  for (const auto& prompt : request.prompts) {
    require_readable(model, prompt, request.settings.options.slides);
    const auto size = std::ssize(prompt), most = request.settings.longest_prompt;
    if (most == 0 || size <= most) continue;
    refuse(c10::str("the prompt has ", size, " tokens, and the server takes ", most,
                    "; shorten it, or start the server with --longest-prompt ", size));
  }
}

const char* reason_of(GenerationEnd end) {
  return end == GenerationEnd::max_tokens || end == GenerationEnd::longest ? "length" : "stop";
}

// Each token has its bytes, too, or null, because those that are not UTF-8 show as U+FFFD.
Body with_bytes(const Codec& codec, TokenId id, double value) {
  Body bytes;
  if (const auto all = codec.bytes(id)) {
    bytes = Body::array();
    for (const unsigned char byte : *all) bytes.push_back(byte);
  }
  return {{"token", codec.word(id)}, {"logprob", value}, {"bytes", bytes}};
}

// offsets: of the tokens in the choice's text, in characters.
Body log_probabilities(bool is_chat, std::span<const GeneratedToken> tokens, const Codec& codec,
                       std::span<const std::size_t> offsets) {
  if (is_chat) {
    auto content = Body::array();
    for (const auto& token : tokens) {
      auto one = with_bytes(codec, token.id, token.log_probability);
      one["top_logprobs"] = Body::array();
      for (const auto& [id, value] : token.likeliest) one["top_logprobs"].push_back(with_bytes(codec, id, value));
      content.push_back(std::move(one));
    }
    return {{"content", content}, {"refusal", nullptr}};
  }
  Body all = {{"text_offset", std::vector(offsets.begin(), offsets.end())},
              {"token_logprobs", Body::array()},
              {"tokens", Body::array()},
              {"top_logprobs", Body::array()}};
  for (const auto& token : tokens) {
    all["tokens"].push_back(codec.word(token.id));
    all["token_logprobs"].push_back(token.log_probability);
    auto likeliest = Body::object();
    for (const auto& [id, value] : token.likeliest) likeliest[codec.word(id)] = value;
    all["top_logprobs"].push_back(std::move(likeliest));
  }
  return all;
}

Body head(const Request& request, const char* chat_object) {
  return {{"id", request.id},
          {"object", request.is_chat ? chat_object : "text_completion"},
          {"created", request.created},
          {"model", request.model}};
}

Body usage(const Request& request, std::size_t tokens) {
  const auto prompt = request.prompt_tokens();
  return {{"prompt_tokens", prompt}, {"completion_tokens", tokens}, {"total_tokens", prompt + tokens}};
}

std::string event(const Request& request, Body choice) {
  auto body = head(request, "chat.completion.chunk");
  body["choices"] = Body::array({std::move(choice)});
  if (request.counts_tokens) body["usage"] = nullptr;
  return "data: " + json_text(body) + "\n\n";
}

}  // namespace

std::size_t Request::prompt_tokens() const {
  std::size_t tokens = 0;
  for (const auto& prompt : prompts) tokens += prompt.size();
  return tokens;
}

Request read_request(const Body& body, bool is_chat, const GenerationSettings& defaults, const Generator& generator) {
  Fields fields(body);
  Request request{.is_chat = is_chat, .settings = defaults, .prompts = {}, .id = {}, .model = {}};
  auto& settings = request.settings;
  settings.beams.beams = 1;
  settings.count = 1;
  settings.batch = most_choices;
  read_sampling(fields, settings);
  read_likeliest(fields, is_chat, settings.options);
  request.streams = fields.flag("stream");
  if (const auto* options = fields.find("stream_options")) {
    request.counts_tokens = options->is_object() && options->value("include_usage", Body(false)) == true;
  }
  for (const char* name :
       {"model", "user", "store", "metadata", "service_tier", "safety_identifier", "prompt_cache_key"}) {
    fields.skip(name);
  }
  is_chat ? read_chat(fields, generator, request) : read_completion(fields, generator, request);
  fields.refuse_others();
  require_possible(request, generator.model());
  return request;
}

Body answer(const Request& request, const std::vector<Completion>& choices, const Codec& codec) {
  auto body = head(request, "chat.completion");
  body["choices"] = Body::array();
  std::size_t tokens = 0;
  for (const auto& each : choices) {
    Body choice = {{"index", body["choices"].size()}};
    if (request.is_chat) {
      choice["message"] = {{"role", "assistant"}, {"content", each.text}, {"refusal", nullptr}};
    } else {
      choice["text"] = each.text;
    }
    choice["logprobs"] = request.settings.options.likeliest < 0
                             ? Body()
                             : log_probabilities(request.is_chat, each.log_probabilities, codec, each.offsets);
    choice["finish_reason"] = reason_of(each.end);
    body["choices"].push_back(std::move(choice));
    tokens += static_cast<std::size_t>(each.tokens);
  }
  body["usage"] = usage(request, tokens);
  return body;
}

std::string piece(const Request& request, std::size_t choice, const std::string& text,
                  std::span<const GeneratedToken> tokens, const Codec& codec, std::span<const std::size_t> offsets) {
  Body body = {{"index", choice}};
  if (request.is_chat) {
    body["delta"] = {{"role", "assistant"}, {"content", text}};
  } else {
    body["text"] = text;
  }
  body["logprobs"] = tokens.empty() ? Body() : log_probabilities(request.is_chat, tokens, codec, offsets);
  body["finish_reason"] = nullptr;
  return event(request, std::move(body));
}

std::string last_piece(const Request& request, std::size_t choice, GenerationEnd end) {
  Body body = {{"index", choice}};
  if (request.is_chat) {
    body["delta"] = Body::object();
  } else {
    body["text"] = "";
  }
  body["logprobs"] = nullptr;
  body["finish_reason"] = reason_of(end);
  return event(request, std::move(body));
}

std::string end_of_stream(const Request& request, std::size_t completion_tokens) {
  std::string text;
  if (request.counts_tokens) {
    auto body = head(request, "chat.completion.chunk");
    body["choices"] = Body::array();
    body["usage"] = usage(request, completion_tokens);
    text = "data: " + json_text(body) + "\n\n";
  }
  return text + "data: [DONE]\n\n";
}

Body error(unsigned status, const std::string& message) {
  const char* type = status >= 500 ? "server_error" : status == 429 ? "rate_limit_error" : "invalid_request_error";
  const Body code = status == 401 ? Body("invalid_api_key") : Body();
  return {{"error", {{"message", message}, {"type", type}, {"param", nullptr}, {"code", code}}}};
}

}  // namespace vernier::openai
