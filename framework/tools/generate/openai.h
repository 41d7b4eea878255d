// Requests and answers in the form of OpenAI's API: chat completions and completions.
// Source: OpenAI's API reference, and the types of its Python package `openai` 2.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "generator.h"

namespace vernier::openai {

using Body = nlohmann::ordered_json;

struct Request {
  bool is_chat = true;
  GenerationSettings settings;
  std::vector<std::vector<TokenId>> prompts;  // the choices of each follow one another
  bool streams = false, counts_tokens = false;
  std::string id, model;
  std::int64_t created = 0;  // seconds since 1970

  std::size_t prompt_tokens() const;
};

// Throws Error with one line for what is wrong or not supported.
Request read_request(const Body& body, bool is_chat, const GenerationSettings& defaults, const Generator& generator);

// The answer with all choices.
Body answer(const Request& request, const std::vector<Completion>& choices, const Codec& codec);
// Server-sent events: a piece of a choice, its end, and the end of all. offsets: of its tokens in the choice's text.
std::string piece(const Request& request, std::size_t choice, const std::string& text,
                  std::span<const GeneratedToken> tokens, const Codec& codec, std::span<const std::size_t> offsets);
std::string last_piece(const Request& request, std::size_t choice, GenerationEnd end);
std::string end_of_stream(const Request& request, std::size_t completion_tokens);

Body error(unsigned status, const std::string& message);

}  // namespace vernier::openai
