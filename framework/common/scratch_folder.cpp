#include "scratch_folder.h"

#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <stdexcept>

namespace vernier {

namespace fs = std::filesystem;

ScratchFolder::ScratchFolder(const fs::path& beside)
    : path_((beside.empty() ? fs::canonical(fs::temp_directory_path()) / "vernier"
                            : fs::weakly_canonical(fs::absolute(beside)))
                .string() +
            "-XXXXXX") {
  if (::mkdtemp(path_.data()) != nullptr) return;
  const std::string why = std::strerror(errno);
  if (!beside.empty()) throw std::runtime_error(beside.string() + ": no folder can be made beside it: " + why);
  throw std::runtime_error(path_ + ": no folder can be made here: " + why + "; set TMPDIR to a folder with room");
}

ScratchFolder::~ScratchFolder() {
  std::error_code ignored;
  fs::remove_all(path_, ignored);
}

}  // namespace vernier
