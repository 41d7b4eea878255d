#include "tokenizer_file.h"

#include <vernier/data_file.h>
#include <vernier/error.h>

#include <algorithm>

#include "text/unicode/unicode.h"
#include "tokenizer_beside.h"
#include "tokenizer_model.h"

namespace vernier {

namespace {

namespace fs = std::filesystem;

constexpr std::uint64_t most_bytes = 1'000'000'000;

// A first line "#version: 0.2", then a merge a line.
void read_merges_txt(const std::string& path, TokenizerFile& file) {
  const auto text = read_data_file(path, most_bytes);
  std::size_t line = 0;
  for (std::size_t at = 0; at < text.size();) {
    const auto end = std::min(text.find('\n', at), text.size());
    auto words = std::string_view(text).substr(at, end - at);
    at = end + 1;
    ++line;
    if (words.ends_with('\r')) words.remove_suffix(1);
    if (words.empty() || (line == 1 && words.starts_with("#version"))) continue;
    const auto where = "line " + std::to_string(line);
    if (!add_merge(file, where, words)) {
      refuse("'" + path + "': " + where + " is not two tokens with a space between them");
    }
  }
}

void read_tokenizer_json(TokenizerFile& file) {
  const auto json = read_tokenizer_part(file.path, "tokenizer");
  const JsonPart root(file.path, json.value);
  root.require_only({"version", "truncation", "padding", "added_tokens", "normalizer", "pre_tokenizer",
                     "post_processor", "decoder", "model"});
  read_model(root.member("model"), file);
  read_added_tokens(root.member("added_tokens"), file);
  read_style(root, file);
  read_post_processor(root.member("post_processor"), file);
}

void read_vocab_and_merges(const fs::path& folder, TokenizerFile& file) {
  const auto json = read_tokenizer_part(file.path, "vocabulary");
  read_vocabulary(JsonPart(file.path, json.value), file);
  file.path = folder / "merges.txt";
  read_merges_txt(file.path, file);
  file.path = folder / "vocab.json";
  file.is_byte_level = true;
  require_bytes(JsonPart(file.path, json.value), file);
  const auto end = file.vocabulary.find("<|endoftext|>");
  if (end != file.vocabulary.end()) file.added.push_back({.id = end->second, .text = end->first, .is_special = true});
}

}  // namespace

const std::array<std::string, 256>& byte_characters() {
  static const auto characters = [] {
    std::array<std::string, 256> all;
    char32_t next = 0x100;
    for (unsigned byte = 0; byte < 256; ++byte) {
      const bool stands_for_itself = (byte >= 33 && byte <= 126) || (byte >= 161 && byte <= 172) || byte >= 174;
      append_utf8(all[byte], stands_for_itself ? byte : next++);
    }
    return all;
  }();
  return characters;
}

TokenizerFile read_tokenizer_folder(const fs::path& folder) {
  TokenizerFile file;
  file.path = folder / "tokenizer.json";
  if (fs::exists(file.path)) {
    read_tokenizer_json(file);
  } else {
    file.path = folder / "vocab.json";
    if (!fs::exists(file.path)) {
      refuse("'" + folder.string() + "' has no tokenizer: neither tokenizer.json nor vocab.json and merges.txt");
    }
    read_vocab_and_merges(folder, file);
  }
  read_files_beside(folder, file);
  return file;
}

}  // namespace vernier
