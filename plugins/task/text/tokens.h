// The tokens of the texts of task/text.
#pragma once

#include <torch/types.h>
#include <vernier/state.h>
#include <vernier/text/tokenizer.h>

#include <cstdint>
#include <string>
#include <vector>

namespace text {

// Learns byte-level BPE of at most so many tokens. Returns the files of a tokenizer's folder.
vernier::State learned_tokenizer(const std::vector<std::string>& texts, std::int64_t vocabulary);

// Tokens of texts as a network takes them: `before`, the tokenizer's ids, each plus `first_id`, `behind`, then
// `padding`.
struct Code {
  std::vector<std::int64_t> before, behind;
  std::int64_t first_id = 0, padding = -1;
  std::string describe() const;  // "0, then the ids of the tokenizer, each plus 2, then 1 up to the length"
};

// The code of the encoder that is trained from nothing.
inline const Code encoder_code{.before = {0}, .behind = {}, .first_id = 2, .padding = 1};
// The code of a published model, with what its tokenizer adds around a text, such as Llama's token for its beginning.
Code published_code(const vernier::Tokenizer& tokenizer);

struct Encoded {
  torch::Tensor tokens;        // int32 [texts, length]
  std::int64_t longest = 0;    // tokens of the longest text, those around it included
  std::int64_t shortened = 0;  // texts of which the end is left out
  std::int64_t empty = -1;     // the first text without any token
};

// length: the most tokens of a text; what is behind them is left out. Special tokens that are written in a text stay
// ordinary text. fits: the tensor is as long as the longest text where that is shorter than `length`.
Encoded encode(const vernier::Tokenizer& tokenizer, const Code& code, const std::vector<std::string>& texts,
               std::int64_t length, bool fits);

}  // namespace text
