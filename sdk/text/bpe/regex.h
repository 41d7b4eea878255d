// The regular expressions of tokenizer.json. The package `tokenizers` matches them with Oniguruma and the classes of
// Unicode 16.0; here PCRE2 does (https://www.pcre.org), and classes of characters are those of unicode.h.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <string_view>

namespace vernier {

class Regex {
 public:
  // Throws Error with the reason for an expression that is malformed, or that has what the two engines read in
  // different ways: such as \b, \h, {1,3}+, other properties than general categories and Han, and classes in classes.
  explicit Regex(const std::string& expression);

  struct Match {
    std::size_t begin, end;  // bytes; equal for an empty match
  };
  // The first match from a byte of valid UTF-8 on. Any thread may call it.
  std::optional<Match> find(std::string_view text, std::size_t from) const;

 private:
  std::shared_ptr<const void> code_;
};

}  // namespace vernier
