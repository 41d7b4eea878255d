// Files of prompts and completions, as JSON Lines.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "files/json.h"
#include "generator.h"

namespace vernier {

constexpr std::size_t deepest_prompt = 64;  // levels of JSON

struct PromptLine {
  std::uint64_t number = 1;  // in the file
  OrderedJson object;
};

// Throws Error, with file and line, for a line that is not a JSON object with a text in "prompt" or an array in
// "messages". Empty lines are left out.
std::vector<PromptLine> read_prompts(const std::string& path);

// The files of a call. output: a file, which is written whole or not at all; "": standard output, line by line.
struct PromptFiles {
  std::string input, output;
};

// Writes each line with "completion", "tokens" and "end"; or with "completions", objects of these, if there are
// several.
void write_completions(const Generator& generator, const GenerationSettings& settings,
                       const std::vector<PromptLine>& lines, const PromptFiles& files);

// The name of an end: "stop".
const char* name_of(GenerationEnd end);

}  // namespace vernier
