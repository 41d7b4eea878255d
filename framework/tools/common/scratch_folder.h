// A new folder among the system's temporary files, which is removed with this object.
#pragma once

#include <string>

namespace vernier {

class ScratchFolder {
 public:
  ScratchFolder();  // throws std::runtime_error
  ScratchFolder(const ScratchFolder&) = delete;
  ScratchFolder& operator=(const ScratchFolder&) = delete;
  ~ScratchFolder();
  const std::string& path() const { return path_; }

 private:
  std::string path_;
};

}  // namespace vernier
