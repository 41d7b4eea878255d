// A checkpoint that is being written: the parts of write_checkpoint(), for several processes that write one together.
#pragma once

#include <vernier/checkpoint_folder.h>

#include <cstdint>
#include <functional>
#include <map>
#include <string>

namespace vernier {

// A temporary folder beside the place of the checkpoint, which only its owner may read. One process makes it and
// completes it. Any thread, one at a time.
class VERNIER_API UnfinishedCheckpoint {
 public:
  explicit UnfinishedCheckpoint(const std::string& path);
  ~UnfinishedCheckpoint();  // removes the folder, unless the checkpoint is complete
  UnfinishedCheckpoint(const UnfinishedCheckpoint&) = delete;
  UnfinishedCheckpoint& operator=(const UnfinishedCheckpoint&) = delete;

  const std::string& folder() const { return folder_; }
  // `about.files` is what the functions below have returned, for all files. Returns the manifest.
  CheckpointManifest complete(CheckpointManifest about);

 private:
  void put_in_place() const;

  std::string path_, parent_, aside_, folder_;
  bool is_kept_ = false;
};

using CheckpointFiles = std::map<std::string, CheckpointManifest::File>;
using CheckpointProgress = std::function<void(std::uint64_t)>;  // tensor bytes written so far

// These write files into the folder and sync them. The first writes the model's and the state's, the second that part
// of the state which rank `rank`, at least 1, has alone.
VERNIER_API CheckpointFiles write_checkpoint_files(const std::string& folder, const State& model, const State& state,
                                                   const CheckpointProgress& progress = {});
VERNIER_API CheckpointFiles write_checkpoint_shard(const std::string& folder, std::int64_t rank, const State& state,
                                                   const CheckpointProgress& progress = {});

// Files of a manifest as text, which one rank sends to another. `path` is for messages. parse_files() throws Error.
VERNIER_API std::string files_text(const std::string& path, const CheckpointFiles& files);
VERNIER_API CheckpointFiles parse_files(const std::string& path, const std::string& text);

}  // namespace vernier
