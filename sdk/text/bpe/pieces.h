// How byte-level tokenizers cut a text into the pieces that BPE works on.
#pragma once

#include <cstdint>
#include <optional>
#include <string_view>

namespace vernier {

// The regular expressions of published folders. They are matched by hand; tests compare the pieces with the package's.
enum class PieceRule : std::uint8_t {
  gpt2,    // GPT-2, https://github.com/openai/gpt-2/blob/master/src/encoder.py
  llama3,  // Llama 3 and OpenAI's cl100k_base: numbers of at most three digits
  qwen2    // Qwen 2: numbers of one digit
};

// The rule that has this regular expression, if it is known.
std::optional<PieceRule> rule_of_regex(std::string_view regex);

// The end of the piece that begins at a byte of valid UTF-8.
std::size_t piece_end(PieceRule rule, std::string_view text, std::size_t at);

// True if a piece ends between two characters, whatever the rule and what stands beside them: behind a letter or a
// number, before a character that is neither.
bool always_ends_piece(char32_t before, char32_t behind);

}  // namespace vernier
