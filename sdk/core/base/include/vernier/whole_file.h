// A file or folder that is written beside its place and then put there whole, so that a failure or a kill never leaves
// half of it. Needs the standard library and POSIX only.
#pragma once

#include <unistd.h>

#include <cerrno>
#include <filesystem>
#include <fstream>
#include <string>
#include <system_error>
#include <utility>

namespace vernier {

//   WholeFile file("weights.safetensors");
//   save_safetensors(file.part(), tensors);
//   file.finish();
class WholeFile {
 public:
  // Two processes may write the same file at once: each has a part() of its own. A device, a pipe or a link, such as
  // /dev/stdout, is written in place.
  explicit WholeFile(std::filesystem::path path) : path_(std::move(path)), part_(path_.string()) {
    std::error_code none;
    const auto there = std::filesystem::symlink_status(path_, none);
    is_finished_ = exists(there) && !is_regular_file(there) && !is_directory(there);
    if (is_finished_) return;
    part_ += '.' + std::to_string(::getpid()) + ".partial";
    std::filesystem::remove_all(part_, none);  // a link that somebody left there is not followed
  }
  WholeFile(const WholeFile&) = delete;
  WholeFile& operator=(const WholeFile&) = delete;
  // Removes what was written, unless finish() has put it in its place.
  ~WholeFile() {
    std::error_code none;
    if (!is_finished_) std::filesystem::remove_all(part_, none);
  }

  const std::string& part() const { return part_; }  // the path to write to

  // Puts the closed file in its place. Throws std::system_error.
  void finish() {
    if (!is_finished_) std::filesystem::rename(part_, path_);
    is_finished_ = true;
  }

 private:
  std::filesystem::path path_;
  std::string part_;
  bool is_finished_ = false;
};

// Writes a text whole. Throws std::system_error with the reason of the call that failed.
inline void write_whole(const std::filesystem::path& path, const std::string& text) {
  WholeFile file(path);
  errno = 0;
  std::ofstream out(file.part(), std::ios::binary);
  if (!(out << text).flush()) throw std::system_error(errno, std::generic_category(), path.string());
  out.close();
  file.finish();
}

}  // namespace vernier
