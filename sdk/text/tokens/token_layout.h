// The place and the type of the tokens in a file: by what the file says of itself, by its user, or by a guess that its
// bytes must bear out.
#pragma once

#include <vernier/text/token_data.h>

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "data/readers/mapped_file.h"

namespace vernier {

struct TokenLayout {
  std::string type = "uint16";  // a name of width_of_token()
  std::size_t begin = 0;        // bytes before the first token
  std::int64_t count = 0;       // tokens
  std::string known_by;         // "as its header says"; empty: the user gave it
  bool is_guessed = false;
};

// The bytes of a token of this type: "uint16". 0: there is no such type.
std::size_t width_of_token(std::string_view type);
// The names of all types, for errors.
std::string token_types();

// Throws Error for a file of another kind, one that contradicts itself, its note or its user, and one that is not of
// the guessed type by its bytes.
TokenLayout token_layout_of(const MappedFile& file, const WindowOptions& options);
// Without any check: all bytes.
TokenLayout bytes_layout_of(const MappedFile& file);

// Throws Error, with the place and what helps, if a token is not below the vocabulary. Looks at no more than
// tokens_looked_at. Returns the largest of them.
std::int64_t check_tokens(const MappedFile& file, const TokenLayout& layout, std::int64_t vocabulary);

}  // namespace vernier
