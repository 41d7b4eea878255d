// A checkpoint on disk: a folder with model.safetensors, state.safetensors and manifest.json. It is there whole or not
// at all, whatever stops the writer, and what was changed since is refused. docs/checkpoint-format.md specifies it.
//
// In a loop of your own:  vernier::write_checkpoint("runs/x/step-00000100", {.step = 100}, weights, rest);
//                         vernier::read_checkpoint_into(vernier::checkpoints_in("runs/x").front(), weights);
#pragma once

#include <vernier/state.h>

#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <vector>

namespace vernier {

// The version that this library writes. It reads this one and all before it.
inline constexpr std::int64_t checkpoint_format_version = 2;

// What the manifest says. Of version 1, which had none, what its file's header says: no checksums, plugins or
// configuration.
struct CheckpointManifest {
  struct Tensor {
    std::string dtype;  // as safetensors names it: "F32"
    std::vector<std::int64_t> shape;
    std::string checksum;  // XXH3-128 of its bytes, 32 hexadecimal digits
  };
  struct File {
    std::uint64_t bytes = 0;
    std::string header_checksum;  // of the bytes before the tensors
    std::map<std::string, Tensor> tensors;
  };
  struct Plugin {
    std::string id, version;  // "optimizer/adamw", "1.0.0"
  };

  std::int64_t step = 0;            // updates finished
  std::string run = {};             // its name
  std::vector<Plugin> plugins = {}; // in the order of the run
  std::string configuration = "{}"; // as resolved: a JSON object
  // Set by write_checkpoint.
  std::int64_t version = checkpoint_format_version;
  std::map<std::string, std::string> versions = {};  // of "vernier" and "torch"
  std::map<std::string, File> files = {};            // by name
};

struct StoredCheckpoint {
  CheckpointManifest manifest;
  Tensors model;  // parameters and buffers under their plain names
  Tensors state;  // all else; both on the CPU, contiguous
};

// All functions may be called on any thread and throw Error that names path, tensor and the system's reason. What is
// damaged or cannot be read is Error::Kind::training, what is whole but of a newer format Error::Kind::configuration.

// Writes a checkpoint: into a temporary folder beside `path`, each file brought to the disk (fsync), the folder too,
// renamed, the parent brought to the disk. When it returns, the checkpoint outlives a loss of power; after an Error,
// `path` is as it was, or new where only the last of these failed. Checkpoints of one parent are for one writer at a
// time. Files get mode 0600, folders 0700. The parent must exist and not be shared. A checkpoint that stands at `path`
// is replaced. Tensors of any device and stride; names must be UTF-8. progress is told after each piece how many bytes
// of tensors are written. Returns the manifest.
VERNIER_API CheckpointManifest write_checkpoint(const std::string& path, CheckpointManifest about, const Tensors& model,
                                                const Tensors& state,
                                                const std::function<void(std::uint64_t)>& progress = {});

// Reads a checkpoint whose origin need not be trusted. The manifest, then sizes, headers and the checksum of every
// byte are checked before anything is returned. Takes as many threads as LibTorch has been given. move_into() (copy.h)
// puts what it returns into a live model.
VERNIER_API StoredCheckpoint read_checkpoint(const std::string& path);

// Only the model's tensors, with the same checks; state.safetensors is not opened, and `state` stays empty.
VERNIER_API StoredCheckpoint read_checkpoint_model(const std::string& path);

// Puts the model's tensors of a checkpoint into the live ones of their names, as copy_ does: the same checks on every byte
// first, so that a model is as it was after an Error, then the file once more, straight into the tensors. That takes no
// memory for a second copy of them. Each live tensor must be in the checkpoint with its shape. Where one has another dtype,
// stride or device, or shares a part of another's memory, all go through memory of their own. A file that is written to, or
// a disk that fails, between the two leaves the model partly restored, and the Error says so. Meanwhile, on local file
// systems, a lease holds writers back; where one comes, the process gets a SIGURG, which is ignored unless it asks for it.
VERNIER_API CheckpointManifest read_checkpoint_into(const std::string& path, const Tensors& live);

// Makes the same checks as read_checkpoint on every byte, in a small buffer a thread.
VERNIER_API CheckpointManifest verify_checkpoint(const std::string& path);

// The manifest alone, its own checksum checked; the other files are not opened (version 1: the header of its one file).
VERNIER_API CheckpointManifest read_manifest(const std::string& path);

// Of the text of a manifest.json. path: for messages.
VERNIER_API CheckpointManifest parse_manifest(const std::string& path, const std::string& text);

// True where `path` looks like a checkpoint: a folder with a manifest, or with the one file of version 1.
VERNIER_API bool is_checkpoint(const std::string& path);

// Names of checkpoints that sort as their steps do: "step-00000100". -1 where a name is none.
VERNIER_API std::string checkpoint_name(std::int64_t step);
VERNIER_API std::int64_t step_of_checkpoint(const std::string& path);
// The paths of what has such a name in a folder, the highest step first, whole or not. None where there is no folder.
// Where a writer was killed while it replaced one, on a file system that cannot exchange two folders, that one is
// found as ".old-step-00000100", which is of step 100 too. All that reads takes it for the one at its path.
VERNIER_API std::vector<std::string> checkpoints_in(const std::string& folder);

// Removes what writers that were killed left in a folder, and puts back what they had put aside. For the one writer,
// before it writes.
VERNIER_API void remove_unfinished_checkpoints(const std::string& folder);

// Throws where others could put their file in the place of one in the folder: a link, or one that they may write to.
VERNIER_API void refuse_a_shared_folder(const std::string& path);

// Brings a folder's names to the disk (fsync): after a link or a folder of checkpoints was made.
VERNIER_API void sync_checkpoint_folder(const std::string& folder);

}  // namespace vernier
