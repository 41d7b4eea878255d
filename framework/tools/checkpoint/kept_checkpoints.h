// The checkpoints of a run, as the plugin sees them that keeps them.
#pragma once

#include <vernier/checkpoint_folder.h>
#include <vernier/roles.h>

#include <memory>
#include <string>
#include <vector>

#include "wiring/host.h"

namespace vernier {

class KeptCheckpoints {
 public:
  // path: a run, the folder of its checkpoints, or one of them. Where no config.toml says that another plugin than
  // rolling keeps them, they have the format of docs/reference/checkpoint-format.md. Throws Error if there is no such
  // file or folder.
  KeptCheckpoints(const std::string& path, const Host& host);

  const std::string& folder() const { return folder_; }             // the folder that has them
  const std::vector<std::string>& paths() const { return paths_; }  // the newest first, or the one at the path
  void refuse_none() const;                                         // throws Error if there is none

  // These take one of the paths, and throw Error if the checkpoint is not whole. glance reads no tensors where the
  // format of the checkpoint can do without.
  StoredCheckpoint read(const std::string& checkpoint) const;
  CheckpointManifest verify(const std::string& checkpoint) const;
  CheckpointManifest glance(const std::string& checkpoint) const;

 private:
  void open_plugin(const std::string& configuration, const Host& host);
  std::string path_, run_, folder_;
  std::unique_ptr<Checkpoint> plugin_;
  std::vector<std::string> paths_;
};

}  // namespace vernier
