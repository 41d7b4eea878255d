#include "own_runs.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstdlib>
#include <fstream>
#include <string>
#include <vector>

namespace vernier {

namespace fs = std::filesystem;

namespace {

bool trusts_all = false;

// The folders that may have the list, the first choice first.
std::vector<fs::path> places() {
  std::vector<fs::path> all;
  const auto add = [&](const char* variable, const char* below) {
    const char* folder = std::getenv(variable);
    if (folder != nullptr && fs::path(folder).is_absolute()) all.push_back(fs::path(folder) / below);
  };
  add("XDG_STATE_HOME", "vernier");
  add("HOME", ".local/state/vernier");
  all.push_back("/tmp/vernier-" +
                std::to_string(::geteuid()));  // it is used where there is no home, or it cannot be written to
  return all;
}

// Others may neither own it nor write to it.
bool is_private(const struct stat& found) {
  return found.st_uid == ::geteuid() && (found.st_mode & (S_IWGRP | S_IWOTH)) == 0;
}

// Opens the list in a folder; -1 if that fails, or if others could have written it.
int open_list(const fs::path& folder, int flags) {
  struct stat found {};
  if (::lstat(folder.c_str(), &found) != 0 || !S_ISDIR(found.st_mode) || !is_private(found)) return -1;
  const int list = ::open((folder / "runs").c_str(), flags | O_CLOEXEC | O_NOFOLLOW, 0600);
  if (list >= 0 && ::fstat(list, &found) == 0 && S_ISREG(found.st_mode) && is_private(found)) return list;
  if (list >= 0) ::close(list);
  return -1;
}

// A line for the folder of a run: its inode and the time when it was made, which no archive can bring along. On a file
// system without such times also its path. "" if there is no such folder.
std::string line_of(const fs::path& folder) {
  struct statx found {};
  if (::statx(AT_FDCWD, folder.c_str(), 0, STATX_INO | STATX_BTIME | STATX_UID, &found) != 0) return "";
  if (found.stx_uid != ::geteuid()) return "";
  auto line = std::to_string(found.stx_ino);
  if ((found.stx_mask & STATX_BTIME) != 0) {
    return line + " " + std::to_string(found.stx_btime.tv_sec) + "." + std::to_string(found.stx_btime.tv_nsec);
  }
  std::error_code none;
  for (const char each : fs::canonical(folder, none).string()) line += each == '\n' ? ' ' : each == ' ' ? '_' : each;
  return line;
}

}  // namespace

bool is_own_run(const fs::path& folder) {
  const auto wanted = line_of(folder);
  if (wanted.empty()) return false;
  for (const auto& place : places()) {
    const int list = open_list(place, O_RDONLY);
    if (list < 0) continue;
    std::ifstream lines("/proc/self/fd/" + std::to_string(list));
    ::close(list);
    for (std::string line; std::getline(lines, line);) {
      if (line == wanted) return true;
    }
  }
  return false;
}

void note_own_run(const fs::path& folder) {
  const auto line = line_of(folder) + "\n";
  if (line == "\n" || is_own_run(folder)) return;
  for (const auto& place : places()) {
    std::error_code none;
    if (place.has_parent_path()) fs::create_directories(place.parent_path(), none);
    ::mkdir(place.c_str(), 0700);
    const int list = open_list(place, O_WRONLY | O_APPEND | O_CREAT);
    if (list < 0) continue;
    const bool is_written = ::write(list, line.data(), line.size()) == static_cast<ssize_t>(line.size());
    ::close(list);
    if (is_written) return;
  }
}

void trust_runs() {
  trusts_all = true;
}

std::string foreign(const fs::path& path) {
  std::error_code none;
  auto run = fs::canonical(path, none);
  for (int up = 0; up < 3 && !fs::exists(run / "config.toml", none); ++up) run = run.parent_path();
  if (!fs::exists(run / "config.toml", none)) run = path;
  if (trusts_all) note_own_run(run);
  return trusts_all || is_own_run(run) ? "" : path.string();
}

}  // namespace vernier
