// manifest.json of a checkpoint as text. parse_manifest() of vernier/checkpoint_folder.h reads it.
#pragma once

#include <vernier/checkpoint_folder.h>
#include <vernier/unfinished_checkpoint.h>

#include <cstdint>
#include <string>

namespace vernier {

inline constexpr const char* checkpoint_format_name = "vernier.checkpoint";
inline constexpr const char* checkpoint_model_file = "model.safetensors";
inline constexpr const char* checkpoint_state_file = "state.safetensors";
std::string checkpoint_shard_file(std::int64_t rank);        // "state-rank-1.safetensors"
std::string checkpoint_model_shard_file(std::int64_t rank);  // "model-rank-1.safetensors", while it is written

// The names of a model's files in a complete checkpoint, and of the index that lists several.
std::string checkpoint_model_part(std::size_t number, std::size_t count);          // "model-00001-of-00002.safetensors"
inline constexpr const char* checkpoint_shared_file = "model-shared.safetensors";  // without what is in parts
inline constexpr const char* checkpoint_index_file = "model.safetensors.index.json";
// The index as Hugging Face's libraries read it. files: the file of each tensor.
std::string index_text(const std::string& path, std::uint64_t bytes, const std::map<std::string, std::string>& files);

// The text ends with its own checksum. Throws Error, naming `path`, if a text of the manifest is not UTF-8 or its
// configuration is not JSON.
std::string manifest_text(const std::string& path, const CheckpointManifest& manifest);

}  // namespace vernier
