// manifest.json of a checkpoint as text; parse_manifest() reads it.
#pragma once

#include <vernier/checkpoint_folder.h>

#include <string>

namespace vernier {

inline constexpr const char* checkpoint_format_name = "vernier.checkpoint";
inline constexpr const char* checkpoint_model_file = "model.safetensors";
inline constexpr const char* checkpoint_state_file = "state.safetensors";

// With its own checksum at the end. path: for messages.
std::string manifest_text(const std::string& path, const CheckpointManifest& manifest);

}  // namespace vernier
