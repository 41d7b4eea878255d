#include "scratch_folder.h"

#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <stdexcept>

namespace vernier {

namespace fs = std::filesystem;

ScratchFolder::ScratchFolder() : path_((fs::temp_directory_path() / "vernier-XXXXXX").string()) {
  if (::mkdtemp(path_.data()) != nullptr) return;
  throw std::runtime_error(path_ + ": no folder can be made here: " + std::strerror(errno) +
                           "; set TMPDIR to a folder with room");
}

ScratchFolder::~ScratchFolder() {
  std::error_code ignored;
  fs::remove_all(path_, ignored);
}

}  // namespace vernier
