// A new folder that is removed with this object.
#pragma once

#include <filesystem>
#include <string>

namespace vernier {

class ScratchFolder {
 public:
  // beside: the folder is made next to this path; "": among the system's temporary files. Throws std::runtime_error.
  explicit ScratchFolder(const std::filesystem::path& beside = {});
  ScratchFolder(const ScratchFolder&) = delete;
  ScratchFolder& operator=(const ScratchFolder&) = delete;
  ~ScratchFolder();
  const std::string& path() const { return path_; }

 private:
  std::string path_;
};

}  // namespace vernier
