// The checkpoints of one run on the disk: which of them stay, and where the links lead.
#pragma once

#include <vernier/checkpoint_folder.h>
#include <vernier/unfinished_checkpoint.h>

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

namespace rolling {

using Scores = std::map<std::int64_t, double>;  // by the step of the checkpoint

struct Retention {
  std::int64_t keep_last = 3, keep_every = 0, keep_best = 0;
  bool highest_is_best = false;
};

// The steps with the best scores, the best first; of equal scores the earlier step. At most `count`.
std::vector<std::int64_t> best_of(const Scores& scores, std::int64_t count, bool highest_is_best);

// Input and result of Folder::save.
struct Save {
  vernier::StoredCheckpoint checkpoint;
  Scores scores;
};
struct Saved {
  std::string path;
  double seconds = 0;
  std::uint64_t bytes = 0;
  std::vector<std::int64_t> steps;  // steps of the checkpoints that stay, the highest first
  std::string files = {};           // with several ranks: the files that this rank has written, and nothing else is set
};

class Folder {
 public:
  using Warn = std::function<void(const std::string&)>;  // any thread
  Folder(std::string path, Retention retention, Warn warn)
      : path_(std::move(path)), retention_(retention), warn_(std::move(warn)) {}

  // Any thread, one at a time. Writes the checkpoint, and syncs the files that the run has beside its checkpoints. Then
  // renames checkpoints of later steps to abandoned-…, moves the links, and removes the checkpoints that need not stay.
  Saved save(const Save& what, const vernier::CheckpointProgress& progress) const;
  // The same in parts, where other processes write files too. complete() wants the files of all in the manifest.
  std::unique_ptr<vernier::UnfinishedCheckpoint> begin(std::int64_t step) const;
  Saved complete(vernier::UnfinishedCheckpoint& unfinished, const Save& what) const;

  // Returns what helps against a full disk, as the end of a message; "" for another failure. bytes: of the checkpoint.
  std::string remedy(const std::string& failure, std::uint64_t bytes) const;

  // The newest complete checkpoint, with a warning for each newer one. nullopt if the folder has none. Throws Error if
  // none can be read, or at a checkpoint of another format version.
  std::optional<vernier::StoredCheckpoint> read_newest() const;

 private:
  void sync_what_is_beside() const;
  void set_aside_later(std::int64_t step) const;
  void link(const char* name, const std::vector<std::int64_t>& candidates) const;
  std::vector<std::int64_t> steps() const;
  std::string path_of(std::int64_t step) const;
  void remove(std::int64_t step) const;

  std::string path_;
  Retention retention_;
  Warn warn_;
};

}  // namespace rolling
