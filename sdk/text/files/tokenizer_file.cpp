#include "tokenizer_file.h"

#include <vernier/data_file.h>
#include <vernier/error.h>

#include <algorithm>

#include "text/unicode/unicode.h"
#include "tokenizer_config_files.h"
#include "tokenizer_files.h"
#include "tokenizer_model.h"

namespace vernier {

namespace {

namespace fs = std::filesystem;

constexpr std::uint64_t most_bytes = 1'000'000'000;
constexpr char hex_digits[] = "0123456789ABCDEF";

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
  read_normalizer(root.member("normalizer"), file);
  read_pieces(root.member("pre_tokenizer"), file);
  read_decoder(root.member("decoder"), file);
  require_all_characters(root, file);
  read_post_processor(root.member("post_processor"), file);
}

void read_vocab_and_merges(const fs::path& folder, TokenizerFile& file) {
  const auto json = read_tokenizer_part(file.path, "vocabulary");
  read_vocabulary(JsonPart(file.path, json.value), file);
  file.path = folder / "merges.txt";
  read_merges_txt(file.path, file);
  file.path = folder / "vocab.json";
  file.is_byte_level = true;
  file.pieces = {{.kind = PieceStep::Kind::rule, .rule = PieceRule::gpt2}};
  file.decoder = {{.kind = DecodeStep::Kind::byte_level}};
  require_bytes(JsonPart(file.path, json.value), file);
  const auto end = file.vocabulary.find("<|endoftext|>");
  if (end != file.vocabulary.end()) file.added.push_back({.id = end->second, .text = end->first, .is_special = true});
}

// tokenizer.model is of SentencePiece or, as Llama 3 has it, of tiktoken.
void read_model_file(const fs::path&, TokenizerFile& file) {
  const auto bytes = read_data_file(file.path, most_bytes);
  if (is_tiktoken(bytes)) {
    read_tiktoken(bytes, file);
  } else {
    read_sentence_piece(bytes, file);
  }
}

// The only file of the folder that ends so; "" without one.
std::string tiktoken_name(const fs::path& folder) {
  std::string name;
  std::error_code none;
  for (const auto& entry : fs::directory_iterator(folder, none)) {
    if (entry.path().extension() != ".tiktoken") continue;
    if (!name.empty()) refuse("'" + folder.string() + "' has two files of tiktoken; keep one of them");
    name = entry.path().filename();
  }
  return name;
}

struct FileKind {
  std::string name;
  void (*read)(const fs::path& folder, TokenizerFile& file) = nullptr;
};

// The file of the folder that is read; its `read` is null without one.
FileKind kind_of(const fs::path& folder) {
  const FileKind kinds[] = {{"tokenizer.json", [](const fs::path&, TokenizerFile& file) { read_tokenizer_json(file); }},
                            {"vocab.json", read_vocab_and_merges},
                            {"tokenizer.model", read_model_file},
                            {"tekken.json", [](const fs::path&, TokenizerFile& file) { read_tekken(file); }},
                            {"*.tiktoken", read_model_file},
                            {"vocab.txt", read_vocab_txt}};
  std::error_code none;
  for (auto kind : kinds) {
    if (kind.name.starts_with('*')) kind.name = tiktoken_name(folder);
    if (!kind.name.empty() && fs::exists(folder / kind.name, none)) return kind;
  }
  return {};
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
  const auto kind = kind_of(folder);
  if (kind.read == nullptr) {
    refuse("'" + folder.string() +
           "' has no tokenizer: neither tokenizer.json, vocab.json and merges.txt, tokenizer.model, tekken.json, a "
           "file of tiktoken nor vocab.txt");
  }
  file.path = folder / kind.name;
  kind.read(folder, file);
  read_config_files(folder, file);
  return file;
}

bool has_tokenizer(const fs::path& folder) {
  return kind_of(folder).read != nullptr;
}

std::string byte_token(unsigned byte) {
  return std::string("<0x") + hex_digits[byte >> 4] + hex_digits[byte & 15] + ">";
}

std::optional<char> byte_of_token(std::string_view token) {
  if (token.size() != 6 || !token.starts_with("<0x") || token[5] != '>') return std::nullopt;
  unsigned byte = 0;
  for (const char c : token.substr(3, 2)) {
    const auto upper = c >= 'a' && c <= 'f' ? static_cast<char>(c - 'a' + 'A') : c;
    const auto digit = std::string_view(hex_digits).find(upper);
    if (digit == std::string_view::npos) return std::nullopt;
    byte = byte * 16 + static_cast<unsigned>(digit);
  }
  return static_cast<char>(byte);
}

}  // namespace vernier
