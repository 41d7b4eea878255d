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
std::string checkpoint_model_shard_file(std::int64_t rank);  // "model-rank-1.safetensors"

// The text ends with its own checksum. Throws Error, naming `path`, if a text of the manifest is not UTF-8 or its
// configuration is not JSON.
std::string manifest_text(const std::string& path, const CheckpointManifest& manifest);

}  // namespace vernier
