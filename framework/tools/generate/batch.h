// Files of prompts and completions, as JSON Lines.
#pragma once

#include <vernier/generation.h>

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "files/json.h"

namespace vernier {

struct PromptLine {
  std::uint64_t number = 1;  // in the file
  OrderedJson object;
  std::string prompt;
};

struct Completion {
  std::string text;
  std::int64_t tokens = 0;
  GenerationEnd end = GenerationEnd::max_tokens;
};

// Throws Error, with file and line, for a line that is not a JSON object with a text in "prompt". Empty lines are left
// out.
std::vector<PromptLine> read_prompts(const std::string& path);

// Writes each line with "completion", "tokens" and "end". output: a file, which is written whole or not at all; "": on
// standard output, line by line.
void write_completions(const std::vector<PromptLine>& lines, const std::string& input, const std::string& output,
                       const std::function<Completion(const PromptLine&)>& complete);

}  // namespace vernier
