#include "batch.h"

#include <vernier/error.h>
#include <vernier/json_in.h>
#include <vernier/json_text.h>
#include <vernier/whole_file.h>

#include <filesystem>
#include <fstream>
#include <iostream>
#include <optional>

#include "text/chat_template.h"

namespace vernier {

namespace fs = std::filesystem;

namespace {

// In the order of GenerationEnd.
constexpr const char* ends[] = {"max_tokens", "end_token", "longest", "stop", "not_finite"};

PromptLine parsed(const std::string& path, std::uint64_t number, const std::string& text) {
  const auto where = path + ":" + std::to_string(number);
  auto json = json_in<OrderedJson>(text, deepest_prompt);
  const bool has_prompt = json.is_object() && json.contains("prompt") && json["prompt"].is_string();
  const bool has_messages = json.is_object() && json.contains("messages");
  if (has_prompt == has_messages) {
    refuse(where +
           ": must be a JSON object with a text in \"prompt\", or with \"messages\" of a chat, and not be nested "
           "more than " +
           std::to_string(deepest_prompt) + " deep");
  }
  if (has_messages) require_messages(json["messages"], where);
  for (const auto* name : {"tools", "functions", "documents"}) {
    if (has_messages && json.contains(name) && !json[name].empty()) {
      refuse(where + ": has " + name + ", which are not supported");
    }
  }
  return {number, std::move(json)};
}

OrderedJson json_of(const Codec& codec, const GeneratedToken& token) {
  OrderedJson json = {{"token", codec.word(token.id)}, {"id", token.id}, {"logprob", token.log_probability}};
  auto likeliest = OrderedJson::array();
  for (const auto& [id, value] : token.likeliest) {
    likeliest.push_back({{"token", codec.word(id)}, {"id", id}, {"logprob", value}});
  }
  if (!likeliest.empty()) json["top"] = std::move(likeliest);
  return json;
}

// Puts what became of a prompt into an object.
void put(const Codec& codec, const Completion& completion, OrderedJson& object) {
  object["completion"] = completion.text;
  object["tokens"] = completion.tokens;
  object["end"] = name_of(completion.end);
  if (completion.score) object["score"] = *completion.score;
  if (completion.log_probabilities.empty()) return;
  object["logprobs"] = OrderedJson::array();
  for (const auto& token : completion.log_probabilities) object["logprobs"].push_back(json_of(codec, token));
}

// Writes lines in the order of the input, whatever order they are ready in.
class Writer {
 public:
  Writer(const PromptFiles& files, std::size_t lines) : path_(files.output), ready_(lines) {
    if (path_.empty()) return;
    whole_.emplace(path_);
    file_.open(whole_->part(), std::ios::binary);
    if (!file_) refuse(path_ + ": cannot be written");
  }
  void put(std::size_t line, const OrderedJson& object) {
    ready_[line] = json_text(object);
    auto& out = path_.empty() ? std::cout : static_cast<std::ostream&>(file_);
    for (; written_ < ready_.size() && !ready_[written_].empty(); ++written_) {
      out << ready_[written_] << std::endl;
      ready_[written_] = " ";  // frees the text
    }
    if (!out) throw Error((path_.empty() ? "standard output" : path_) + ": cannot be written");
  }
  void finish() {
    if (path_.empty()) return;
    file_.close();
    whole_->finish();
    std::cout << path_ << ": " << written_ << " completions\n";
  }

 private:
  std::string path_;
  std::optional<WholeFile> whole_;
  std::ofstream file_;
  std::vector<std::string> ready_;
  std::size_t written_ = 0;
};

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

const char* name_of(GenerationEnd end) {
  return ends[static_cast<std::size_t>(end)];
}

void write_completions(const Generator& generator, const GenerationSettings& settings,
                       const std::vector<PromptLine>& lines, const PromptFiles& files) {
  Writer writer(files, lines.size());
  const auto& codec = generator.codec();
  std::size_t next = 0;
  generator.run(settings, [&]() -> std::optional<PromptJob> {
    if (next == lines.size()) return std::nullopt;
    const auto place = next++;
    const auto& [number, object] = lines[place];
    PromptJob job{.where = files.input + ":" + std::to_string(number),
                  .prompt = {},
                  .more_seed = number,
                  .done = [&, place](const std::vector<Completion>& completions) {
                    auto line = lines[place].object;
                    if (settings.count == 1) {
                      if (!completions.empty()) put(codec, completions.front(), line);
                    } else {
                      line["completions"] = OrderedJson::array();
                      for (const auto& each : completions) {
                        auto one = OrderedJson::object();
                        put(codec, each, one);
                        line["completions"].push_back(std::move(one));
                      }
                    }
                    writer.put(place, line);
                  }};
    job.prompt = generator.tokens_of(object, job.where);
    return job;
  });
  writer.finish();
}

}  // namespace vernier
