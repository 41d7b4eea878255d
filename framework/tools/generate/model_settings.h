// Settings of generation in a published folder: generation_config.json, or without it `eos_token_id` of config.json.
#pragma once

#include <vernier/generation.h>

#include <optional>
#include <string>
#include <vector>

namespace vernier {

struct ModelSettings {
  std::vector<TokenId> ends;
  std::vector<std::string> stops;
  std::optional<double> temperature, top_p, min_p, repetition_penalty;
  std::optional<std::int64_t> top_k, max_tokens;
  std::vector<std::string> ignored;  // what else would change the text: "num_beams = 4"
};

// folder: "" or one without these files gives nothing. Throws Error, with file and key, for a value that cannot be.
ModelSettings read_model_settings(const std::string& folder);

}  // namespace vernier
