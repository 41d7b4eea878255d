// Settings of generation in a published folder: generation_config.json, or without it `eos_token_id` of config.json.
#pragma once

#include <vernier/text/generation.h>

#include <optional>
#include <string>
#include <vector>

namespace vernier {

struct ModelSettings {
  std::vector<TokenId> ends;
  std::vector<std::string> stops;
  std::optional<double> temperature, top_p, min_p, repetition_penalty, length_penalty;
  std::optional<std::int64_t> top_k, max_tokens, min_tokens, min_length, no_repeat_ngram, beams;
  std::optional<std::string> early_stopping;  // "no", "yes" or "never"
  std::vector<std::string> ignored;           // other settings that would change the text: "typical_p = 0.9"
};

// folder: "" or one without these files gives nothing. Throws Error, with file and key, for a value that cannot be.
ModelSettings read_model_settings(const std::string& folder);

}  // namespace vernier
