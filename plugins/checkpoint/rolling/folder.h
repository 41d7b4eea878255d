// The checkpoints of one run: which stay, and which the links name.
#pragma once

#include <vernier/checkpoint_folder.h>

#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <vector>

namespace rolling {

using Scores = std::map<std::int64_t, double>;  // of the checkpoints of some steps

struct Retention {
  std::int64_t keep_last = 3, keep_every = 0, keep_best = 0;
  bool highest_is_best = false;
};

// The steps with the best scores, the best first; of equal ones the earlier. At most `count`.
std::vector<std::int64_t> best_of(const Scores& scores, std::int64_t count, bool highest_is_best);

// Of the steps that there are, the highest first, those that stay.
std::vector<std::int64_t> those_that_stay(const std::vector<std::int64_t>& steps, const Scores& scores,
                                          const Retention& retention);

// One save: what is to be written, and what was.
struct Save {
  vernier::CheckpointManifest about;
  vernier::Tensors model, state;
  Scores scores;
};
struct Saved {
  std::string path;
  double seconds = 0;
  std::uint64_t bytes = 0;
  std::vector<std::int64_t> steps;  // that are there now, the highest first
};

class Folder {
 public:
  using Warn = std::function<void(const std::string&)>;  // any thread
  Folder(std::string path, Retention retention, Warn warn)
      : path_(std::move(path)), retention_(retention), warn_(std::move(warn)) {}

  // Any thread, one at a time: brings what the run has written beside its checkpoints to the disk, writes, then renames
  // those of later steps, which the run went back from, to abandoned-…, then moves the links, then removes what need not
  // stay.
  Saved save(const Save& what, const std::function<void(std::uint64_t)>& progress) const;

  // The newest that is whole, with warnings where it is not the newest; nothing where there are none.
  std::optional<vernier::StoredCheckpoint> read_newest() const;

 private:
  void make() const;
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
