// A checkpoint on disk: a folder with model.safetensors, state.safetensors and manifest.json. The folder is complete or
// absent, whatever stops the writer. Later changes are detected. docs/reference/checkpoint-format.md is the
// specification.
//
//   vernier::write_checkpoint("runs/x/step-00000100", {.step = 100}, vernier::state_dict(*model), state);
//   const auto saved = vernier::read_checkpoint(vernier::checkpoints_in("runs/x").front());
//   vernier::load_state_dict(*model, saved.model);
//
// Any thread may call these functions. They throw Error, which names path, tensor and the system's reason. Its kind is
// `training` for a file that is damaged or cannot be read, and `configuration` for another version of the format.
#pragma once

#include <vernier/state.h>

#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <vector>

namespace vernier {

inline constexpr std::int64_t checkpoint_format_version = 2;  // the only one that is read and written

// The content of manifest.json.
struct CheckpointManifest {
  struct Tensor {
    std::string dtype;  // by its name in safetensors: "F32"
    std::vector<std::int64_t> shape;
    std::string checksum;  // XXH3-128 of the tensor's bytes, 32 hexadecimal digits
  };
  struct File {
    std::uint64_t bytes = 0;
    std::string header_checksum;  // checksum of the bytes before the tensors
    std::map<std::string, Tensor> tensors;
  };
  struct Plugin {
    std::string id, version;  // "optimizer/adamw", "1.0.0"
  };

  std::int64_t step = 0;             // finished updates
  std::string run = {};              // its name
  std::vector<Plugin> plugins = {};  // in the order of the run
  std::string configuration = "{}";  // the resolved options, as a JSON object
  // write_checkpoint sets the members below.
  std::int64_t version = checkpoint_format_version;
  std::map<std::string, std::string> versions = {};  // versions of "vernier" and "torch"
  std::map<std::string, File> files = {};            // by name
};

struct StoredCheckpoint {
  CheckpointManifest manifest;
  State model;  // parameters and buffers under their own names
  State state;  // everything else; all tensors are contiguous and on the CPU
};

// Writes a checkpoint to a temporary folder beside `path`, syncs it to the disk and renames it. On return the
// checkpoint survives a loss of power. After an Error `path` is unchanged, or new where only the last sync failed. An
// existing checkpoint at `path` is replaced. The parent folder must exist, must not be writable by others, and must
// have one writer at a time. Files get mode 0600, folders 0700. Tensors may have any device and stride; names must be
// UTF-8. `progress` receives the number of tensor bytes written so far. Returns the manifest.
VERNIER_API CheckpointManifest write_checkpoint(const std::string& path, CheckpointManifest about, const State& model,
                                                const State& state,
                                                const std::function<void(std::uint64_t)>& progress = {});

// Reads a checkpoint from any source. Checks the manifest, sizes, headers and the checksum of every byte before it
// returns. Uses as many threads as at::get_num_threads().
VERNIER_API StoredCheckpoint read_checkpoint(const std::string& path);

// The same without state.safetensors, which is not opened.
VERNIER_API StoredCheckpoint read_checkpoint_model(const std::string& path);

// Makes the checks of read_checkpoint without memory for the tensors.
VERNIER_API CheckpointManifest verify_checkpoint(const std::string& path);

// Reads the manifest alone and checks its own checksum. parse_manifest takes its text; `path` is for messages.
VERNIER_API CheckpointManifest read_manifest(const std::string& path);
VERNIER_API CheckpointManifest parse_manifest(const std::string& path, const std::string& text);

VERNIER_API bool is_checkpoint(const std::string& path);  // whether it is a folder with a manifest.json

// Names of checkpoints sort as their steps do: "step-00000100". step_of_checkpoint returns -1 for any other name.
VERNIER_API std::string checkpoint_name(std::int64_t step);
VERNIER_API std::int64_t step_of_checkpoint(const std::string& path);

// Returns the folders of such names, complete or not, the highest step first. Empty if there is no folder. If a killed
// writer left only ".old-step-00000100", that is the checkpoint of step 100, and all readers accept both paths.
VERNIER_API std::vector<std::string> checkpoints_in(const std::string& folder);

// The writer calls this before it writes. Removes what killed writers left, and puts back what they had put aside.
VERNIER_API void remove_unfinished_checkpoints(const std::string& folder);

VERNIER_API void refuse_a_shared_folder(const std::string& path);    // throws if a link, or if others may write to it
VERNIER_API void sync_checkpoint_folder(const std::string& folder);  // fsync of its names, after a change of links

}  // namespace vernier
