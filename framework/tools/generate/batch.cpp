#include "batch.h"

#include <vernier/error.h>
#include <vernier/json_text.h>
#include <vernier/whole_file.h>

#include <filesystem>
#include <fstream>
#include <iostream>
#include <optional>

namespace vernier {

namespace fs = std::filesystem;

namespace {

// In the order of GenerationEnd.
constexpr const char* ends[] = {"max_tokens", "end_token", "longest", "stop", "not_finite"};

PromptLine parsed(const std::string& path, std::uint64_t number, const std::string& text) {
  const auto where = path + ":" + std::to_string(number);
  auto json = OrderedJson::parse(text, nullptr, /*allow_exceptions=*/false);
  if (!json.is_object() || !json.contains("prompt") || !json["prompt"].is_string()) {
    refuse(where + ": must be a JSON object with a text in \"prompt\"");
  }
  auto prompt = json["prompt"].get<std::string>();
  return {number, std::move(json), std::move(prompt)};
}

}  // namespace

std::vector<PromptLine> read_prompts(const std::string& path) {
  std::ifstream file(path);
  if (!file || fs::is_directory(path)) refuse(path + ": cannot be read as a file of prompts");
  std::vector<PromptLine> lines;
  std::uint64_t number = 0;
  for (std::string text; std::getline(file, text);) {
    ++number;
    if (text.find_first_not_of(" \t\r") != std::string::npos) lines.push_back(parsed(path, number, text));
  }
  if (lines.empty()) refuse(path + ": has no line with a prompt");
  return lines;
}

void write_completions(const std::vector<PromptLine>& lines, const std::string& input, const std::string& output,
                       const std::function<Completion(const PromptLine&)>& complete) {
  std::error_code none;
  if (!output.empty() && fs::equivalent(input, output, none)) {
    refuse(output + ": is the input, which it would replace; name another file");
  }
  std::optional<WholeFile> whole;
  std::ofstream file;
  if (!output.empty()) {
    whole.emplace(output);
    file.open(whole->part(), std::ios::binary);
    if (!file) refuse(output + ": cannot be written");
  }
  auto& out = output.empty() ? std::cout : static_cast<std::ostream&>(file);
  for (const auto& line : lines) {
    Completion completion;
    try {
      completion = complete(line);
    } catch (const Error& error) {
      throw Error(input + ":" + std::to_string(line.number) + ": " + error.what(), error.kind());
    }
    auto object = line.object;
    object["completion"] = completion.text;
    object["tokens"] = completion.tokens;
    object["end"] = ends[static_cast<std::size_t>(completion.end)];
    out << json_text(object) << std::endl;
    if (!out) throw Error((output.empty() ? "standard output" : output) + ": cannot be written");
  }
  if (!whole) return;
  file.close();
  whole->finish();
  std::cout << output << ": " << lines.size() << " completions\n";
}

}  // namespace vernier
