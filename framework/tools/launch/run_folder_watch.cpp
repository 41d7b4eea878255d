#include "run_folder_watch.h"

#include <fstream>
#include <string>

namespace vernier {

namespace fs = std::filesystem;

RunFolderWatch::RunFolderWatch(fs::path wanted) : wanted_(std::move(wanted)), before_(locks()) {}

RunFolderWatch::Locks RunFolderWatch::locks() const {
  Locks found;
  const auto parent = wanted_.has_parent_path() ? wanted_.parent_path() : fs::path(".");
  const auto first = wanted_.filename().string();
  std::error_code trouble;
  for (fs::directory_iterator entry(parent, trouble), end; !trouble && entry != end; entry.increment(trouble)) {
    const auto name = entry->path().filename().string();
    if (name != first && !name.starts_with(first + "-")) continue;
    std::error_code none;
    const auto time = fs::last_write_time(entry->path() / ".lock", none);
    if (!none) found[wanted_.parent_path() / name] = time;
  }
  return found;
}

fs::path RunFolderWatch::locked_by(pid_t process) const {
  for (const auto& [folder, time] : locks()) {
    const auto old = before_.find(folder);
    if (old != before_.end() && old->second == time) continue;
    pid_t holder = 0;
    if (std::ifstream(folder / ".lock") >> holder && holder == process) return folder;
  }
  return {};
}

}  // namespace vernier
