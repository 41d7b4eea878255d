// The folder of a run. One process at a time holds its lock.
#pragma once

#include <vernier/roles.h>

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <utility>

namespace vernier {

// Holds the lock of a run's folder until it is destroyed. checkpoint: knows which folders have a run to resume.
class OutputFolder {
 public:
  // Makes the folder for a new run: `wanted` if it does not exist or has no run, else wanted-2, wanted-3, …. So no run
  // is ever overwritten. Throws Error::Kind::configuration if it cannot be made, is a link, or is writable by others.
  // config: if not empty, takes a folder again in which a run with this config.toml was killed before its first
  // checkpoint, unless another process holds its lock.
  static OutputFolder open_new(const std::filesystem::path& wanted, Checkpoint& checkpoint,
                               const std::string& config = "");

  // Returns whether there is a run to resume: wanted, wanted-2, … with a checkpoint, complete or not.
  static bool is_there(const std::filesystem::path& wanted, Checkpoint& checkpoint);

  // Opens the folder of an earlier run. from: a run's folder or one of its checkpoints. If it is empty, the run among
  // wanted, wanted-2, … with the newest checkpoint is opened. Throws Error if there is none, or if another process
  // holds its lock.
  static OutputFolder open_existing(const std::filesystem::path& wanted, Checkpoint& checkpoint,
                                    const std::string& from);

  // The folder of a rank other than 0 in the run's: made if it does not exist. Rank 0 holds the lock.
  static OutputFolder open_part(const std::filesystem::path& run, std::int64_t rank);

  OutputFolder(OutputFolder&& other) noexcept : path_(std::move(other.path_)), lock_(std::exchange(other.lock_, -1)) {}
  OutputFolder& operator=(OutputFolder&&) = delete;
  ~OutputFolder();
  const std::filesystem::path& path() const { return path_; }

 private:
  OutputFolder(std::filesystem::path path, int lock) : path_(std::move(path)), lock_(lock) {}
  static std::optional<OutputFolder> try_to_lock(const std::filesystem::path& path);
  std::filesystem::path path_;
  int lock_;  // -1: the file system has no locks
};

// Replaces a file atomically, or throws Error and leaves it unchanged.
void write_file(const std::filesystem::path& path, const std::string& text);

}  // namespace vernier
