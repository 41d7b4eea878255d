// The files of a tokenizer's folder beside tokenizer.json, or beside vocab.json and merges.txt.
#pragma once

#include <filesystem>

#include "tokenizer_file.h"
#include "tokenizer_json.h"

namespace vernier {

// The special tokens that transformers gives names of their own.
constexpr const char* special_names[] = {"bos_token", "eos_token", "unk_token", "sep_token",
                                         "pad_token", "cls_token", "mask_token"};

// True for a special token that a model has under a name of its own, such as "image_token".
bool is_model_token(const std::string& name, const Json& value);

// A text, or an object that has it as `content`.
std::string text_of_token(const JsonPart& token);

// Parses a file of a tokenizer's folder. what: for errors.
ParsedJson read_tokenizer_part(const std::string& path, const std::string& what);

// Reads tokenizer_config.json, special_tokens_map.json and added_tokens.json, as transformers does: more tokens, which
// ones are special, and what is put around a text.
void read_config_files(const std::filesystem::path& folder, TokenizerFile& file);

}  // namespace vernier
