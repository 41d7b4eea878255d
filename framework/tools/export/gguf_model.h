// A published model in GGUF.
#pragma once

#include <nlohmann/json.hpp>
#include <string>

#include "gguf_file.h"

namespace vernier::gguf {

// Writes the model and the tokenizer of a folder of Hugging Face as one file, with the names, keys and layouts of
// llama.cpp: model_type gpt2, llama, mistral, qwen2 and qwen3. type: of the matrices; vectors and positions stay in
// float32. Throws Error for what GGUF, or this function, does not have.
void write_model(const std::string& folder, const std::string& path, Type type);

// Adds the tokenizer of the folder. tokens: how many rows the model's embedding has.
void add_vocabulary(File& file, const std::string& folder, std::int64_t tokens);

// The JSON of a file of the folder; an empty object if there is none.
nlohmann::json json_of(const std::string& folder, const char* name);

}  // namespace vernier::gguf
