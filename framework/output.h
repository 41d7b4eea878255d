// The folder of a run: found, made, and held by one process at a time.
#pragma once

#include <filesystem>
#include <optional>
#include <string>

namespace vernier {

// Holds the lock of a run's folder until it is destroyed.
class OutputFolder {
 public:
  // A folder for a new run: `wanted` where it does not exist or holds no run, else wanted-2, wanted-3, …, so that no
  // run is ever written over. Throws Error::Kind::configuration where it cannot be made, is a link, or others may write
  // to it.
  static OutputFolder open_new(const std::filesystem::path& wanted);

  // Whether there is a run to go on with: wanted, wanted-2, … with a checkpoint in it, whole or not.
  static bool is_there(const std::filesystem::path& wanted);

  // The folder of an earlier run. from: empty for the run among wanted, wanted-2, … that saved a checkpoint last; else
  // a run's folder or one of its checkpoints. Throws where there is none, or another process is writing to it.
  static OutputFolder open_existing(const std::filesystem::path& wanted, const std::string& from);

  OutputFolder(OutputFolder&& other) noexcept : path_(std::move(other.path_)), lock_(std::exchange(other.lock_, -1)) {}
  OutputFolder& operator=(OutputFolder&&) = delete;
  ~OutputFolder();
  const std::filesystem::path& path() const { return path_; }

 private:
  OutputFolder(std::filesystem::path path, int lock) : path_(std::move(path)), lock_(lock) {}
  static std::optional<OutputFolder> try_to_lock(const std::filesystem::path& path);
  std::filesystem::path path_;
  int lock_;
};

// Replaces a file as a whole, or throws and leaves it as it was.
void write_file(const std::filesystem::path& path, const std::string& text);

}  // namespace vernier
