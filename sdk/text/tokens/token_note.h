// The note beside a file of tokens, which says of which type they are: tokens.bin.json for tokens.bin.
#pragma once

#include <vernier/abi.h>

#include <cstdint>
#include <optional>
#include <string>

namespace vernier {

struct TokenNote {
  std::string type;  // "uint16"
  std::int64_t tokens = 0, vocabulary = 0;
  std::string tokenizer;  // Tokenizer::checksum()
};

VERNIER_API std::string note_path(const std::string& tokens);
// Returns the text of the note.
VERNIER_API std::string text_of(const TokenNote& note);
// Returns nothing if there is no note. Throws Error, with its path, for another file in its place.
std::optional<TokenNote> read_token_note(const std::string& tokens);

}  // namespace vernier
