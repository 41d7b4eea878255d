// The parts of a template.
#pragma once

#include <string>
#include <vector>

namespace vernier::jinja {

struct Token {
  enum class Kind { data, begin_block, end_block, begin_output, end_output, name, text, whole, real, sign, end };
  Kind kind = Kind::end;
  std::string text;
  std::size_t line = 1;
};

// Cuts a template as Jinja does with trim_blocks and lstrip_blocks. Throws Error, with the line, where it cannot.
std::vector<Token> tokens_of(const std::string& source);

}  // namespace vernier::jinja
