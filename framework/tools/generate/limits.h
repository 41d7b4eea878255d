// The ranges of generation settings: on the command line, in generation_config.json, and in a request to the server.
#pragma once

namespace vernier::limits {

struct Range {
  double least, most;
};

constexpr double many = 1e9, least_share = 1e-9;
constexpr Range temperature{0, 1000}, top_k{0, many}, top_p{least_share, 1}, min_p{0, 1};
constexpr Range repetition_penalty{least_share, 1000}, no_repeat_ngram{0, many};
constexpr Range max_tokens{1, many}, min_tokens{0, many};
constexpr Range beams{1, 1000}, length_penalty{-1000, 1000};

}  // namespace vernier::limits
