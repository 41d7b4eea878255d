// Finds the folder that the runner has trained in: a restarted run resumes there.
#pragma once

#include <sys/types.h>

#include <filesystem>
#include <map>

namespace vernier {

// The runner puts its process id into the lock of the run's folder, which is `wanted`, wanted-2, wanted-3 and so on.
class RunFolderWatch {
 public:
  // Call it before the process is started, so that an old lock with the same process id counts for nothing.
  explicit RunFolderWatch(std::filesystem::path wanted);

  // The folder that the process has locked since then; empty if there is none.
  std::filesystem::path locked_by(pid_t process) const;

 private:
  using Locks = std::map<std::filesystem::path, std::filesystem::file_time_type>;
  Locks locks() const;
  std::filesystem::path wanted_;
  Locks before_;
};

}  // namespace vernier
