// The small files of a published model's folder and of its tokenizer: what a checkpoint keeps and an export writes.
#pragma once

#include <vernier/state.h>

#include <filesystem>
#include <string>
#include <vector>

namespace language {

// The bytes of config.json and generation_config.json of a folder, and of the files of a tokenizer's folder, by name.
// tokenizer: may be the same folder, or "" if there is none; then only what lies in the model's folder is taken.
vernier::State read_model_files(const std::string& model, const std::string& tokenizer);
std::string text_of(const vernier::State& files, const std::string& name);
void put_text(vernier::State& files, const std::string& name, const std::string& text);
// Throws Error for a name that read_model_files() does not give: a checkpoint may be a stranger's.
void write_model_files(const vernier::State& files, const std::filesystem::path& folder);

// Adds a token to those that end a text by generation_config.json.
void add_end(vernier::State& files, std::int64_t token);

// Adds words to the tokenizer as special tokens, if it does not have them yet, and raises vocab_size of config.json to
// hold them. Throws Error without a tokenizer.json, or if the tokenizer has tokens that neither words nor model have.
void add_tokens(vernier::State& files, const std::vector<std::string>& words);

// A folder of its own with such files, as long as it lives.
class ModelFolder {
 public:
  explicit ModelFolder(const vernier::State& files);
  ModelFolder(const ModelFolder&) = delete;
  ModelFolder& operator=(const ModelFolder&) = delete;
  ~ModelFolder();
  std::string path() const { return path_.string(); }

 private:
  std::filesystem::path path_;
};

// Throws Error if the folder has another template for chats than the style's own.
void require_chat_style(const std::string& folder, const std::string& own);

}  // namespace language
