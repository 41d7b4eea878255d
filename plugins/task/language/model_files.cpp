#include "model_files.h"

#include <c10/util/StringUtil.h>
#include <torch/types.h>
#include <unistd.h>
#include <vernier/data_file.h>
#include <vernier/error.h>
#include <vernier/json_in.h>
#include <vernier/text/language_data.h>
#include <vernier/text/tokenizer.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <fstream>
#include <nlohmann/json.hpp>
#include <set>

namespace language {

namespace {

namespace fs = std::filesystem;
using Json = nlohmann::ordered_json;

constexpr std::uint64_t largest_file = 256'000'000;  // bytes
constexpr const char* generation = "generation_config.json";
constexpr std::array of_model = {"config.json", generation};
constexpr std::array of_tokenizer = {"tokenizer.json",
                                     "tokenizer_config.json",
                                     "special_tokens_map.json",
                                     "tokenizer.model",
                                     "vocab.json",
                                     "merges.txt",
                                     "tekken.json",
                                     "vocab.txt",
                                     "chat_template.jinja",
                                     "chat_template.json",
                                     "added_tokens.json"};

bool is_known(const std::string& name) {
  const auto is_it = [&](const char* known) { return name == known; };
  return std::ranges::any_of(of_model, is_it) || std::ranges::any_of(of_tokenizer, is_it) ||
         (name.ends_with(".tiktoken") && name.find('/') == name.npos);
}

void take(vernier::State& files, const fs::path& folder, const std::string& name) {
  std::error_code none;
  if (!fs::is_regular_file(folder / name, none)) return;
  put_text(files, name, vernier::read_data_file((folder / name).string(), largest_file));
}

}  // namespace

vernier::State read_model_files(const std::string& model, const std::string& tokenizer) {
  vernier::State files;
  for (const auto* name : of_model) take(files, model, name);
  const fs::path folder = tokenizer.empty() ? model : tokenizer;
  for (const auto* name : of_tokenizer) take(files, folder, name);
  std::error_code none;
  for (const auto& entry : fs::directory_iterator(folder, none)) {
    if (entry.path().extension() == ".tiktoken") take(files, folder, entry.path().filename());
  }
  return files;
}

std::string text_of(const vernier::State& files, const std::string& name) {
  if (!files.has(name)) return "";
  const auto bytes = files.tensor(name).cpu().contiguous();
  return {static_cast<const char*>(bytes.const_data_ptr()), static_cast<std::size_t>(bytes.numel())};
}

void put_text(vernier::State& files, const std::string& name, const std::string& text) {
  auto bytes = torch::empty({static_cast<std::int64_t>(text.size())}, torch::kUInt8);
  if (!text.empty()) std::memcpy(bytes.mutable_data_ptr(), text.data(), text.size());
  files.put(name, bytes);
}

void write_model_files(const vernier::State& files, const fs::path& folder) {
  for (const auto& [name, bytes] : files.tensors) {
    if (!is_known(name)) {
      vernier::refuse("the checkpoint has '" + vernier::shortened(name) +
                      "' among the files of its model, which Vernier never puts there; do not use it");
    }
    std::ofstream file(folder / name, std::ios::binary);
    if (!(file << text_of(files, name)).flush()) {
      throw vernier::Error((folder / name).string() + ": cannot be written");
    }
  }
}

void add_end(vernier::State& files, std::int64_t token) {
  const auto text = text_of(files, generation);
  auto json = text.empty() ? Json::object() : vernier::json_in<Json>(text);
  if (!json.is_object()) return;
  auto ends = Json::array();
  const auto config = vernier::json_in<Json>(text_of(files, "config.json"));
  const auto& from = text.empty() && config.is_object() ? config : json;  // the rule of transformers
  if (from.contains("eos_token_id")) {
    const auto& had = from["eos_token_id"];
    if (had.is_array()) ends = had;
    if (had.is_number()) ends.push_back(had);
  }
  if (std::ranges::find(ends, Json(token)) != ends.end()) return;
  ends.push_back(token);
  json["eos_token_id"] = ends;
  put_text(files, generation, vernier::json_text(json, 2) + "\n");
}

void add_tokens(vernier::State& files, const std::vector<std::string>& words) {
  auto json = vernier::json_in<Json>(text_of(files, "tokenizer.json"));
  auto config = vernier::json_in<Json>(text_of(files, "config.json"));
  if (!json.is_object()) vernier::refuse("new_tokens needs a tokenizer with a tokenizer.json, and there is none");
  if (!config.is_object() || !config.value("vocab_size", Json()).is_number_integer()) {
    vernier::refuse("new_tokens needs vocab_size in the model's config.json, a whole number");
  }
  const ModelFolder folder(files);
  const auto tokenizer = vernier::open_tokenizer(folder.path());
  const auto rows = config["vocab_size"].get<std::int64_t>();
  auto size = static_cast<std::int64_t>(tokenizer->vocabulary());
  std::set<std::int64_t> named;
  for (const auto& word : words) {
    if (word.empty()) vernier::refuse("new_tokens has an empty word");
    if (std::ranges::count(words, word) > 1) vernier::refuse("new_tokens has '" + word + "' twice");
    auto id = size;
    if (const auto known = tokenizer->id(word)) {
      id = *known;
    } else {
      ++size;
      json["added_tokens"].push_back({{"id", id},
                                      {"content", word},
                                      {"single_word", false},
                                      {"lstrip", false},
                                      {"rstrip", false},
                                      {"normalized", false},
                                      {"special", true}});
    }
    named.insert(id);
  }
  for (auto id = rows; id < size; ++id) {
    if (named.count(id) > 0) continue;
    vernier::refuse(c10::str("the tokenizer has ", size, " tokens and the model ", rows,
                             ", and new_tokens does not name token ", id,
                             "; name all that are new, or give the model's own tokenizer"));
  }
  config["vocab_size"] = std::max(rows, size);
  put_text(files, "tokenizer.json", vernier::json_text(json, 2) + "\n");
  put_text(files, "config.json", vernier::json_text(config, 2) + "\n");
}

ModelFolder::ModelFolder(const vernier::State& files) {
  auto name = (fs::temp_directory_path() / "vernier-model-XXXXXX").string();
  if (::mkdtemp(name.data()) == nullptr) {
    vernier::refuse(name + ": cannot be made: " + std::strerror(errno) + "; set TMPDIR to a folder with room");
  }
  path_ = name;
  try {
    write_model_files(files, path_);
  } catch (...) {
    std::error_code none;
    fs::remove_all(path_, none);
    throw;
  }
}

ModelFolder::~ModelFolder() {
  std::error_code none;
  fs::remove_all(path_, none);
}

void require_chat_style(const std::string& folder, const std::string& own) {
  const auto text = vernier::chat_template_of(folder);
  if (text.empty() || text == own) return;
  vernier::refuse(folder + " has a chat template of its own; set chat = \"auto\", which writes chats by it");
}

}  // namespace language
