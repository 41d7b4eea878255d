#include "output.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>
#include <vernier/checkpoint_folder.h>
#include <vernier/whole_file.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <fstream>

namespace vernier {

namespace fs = std::filesystem;

namespace {

constexpr const char* lock_name = ".lock";

// Refuses a folder that cannot be read: it must not be taken for an empty one.
[[noreturn]] void refuse_to_guess(const fs::path& folder, const std::error_code& trouble) {
  refuse(folder.string() + ": cannot be searched for an earlier run: " + trouble.message() +
         "; see that it can be read, and start again");
}

bool holds_a_run(const fs::path& folder) {
  bool holds = false;
  std::error_code trouble;
  for (fs::directory_iterator entry(folder, trouble), end; !trouble && entry != end; entry.increment(trouble)) {
    holds |= entry->path().filename() != lock_name;
  }
  if (trouble) refuse_to_guess(folder, trouble);
  return holds;
}

// The newest snapshot of the run in a folder, as the plugin names it; "" if there is none. unknown: if the plugin
// cannot look at the folder.
std::string newest_snapshot(Checkpoint& checkpoint, const fs::path& folder, const std::string& unknown) try {
  std::error_code none;
  const auto all = fs::is_directory(folder, none) ? checkpoint.snapshots(folder.string()) : std::vector<std::string>{};
  return all.empty() ? "" : all.front();
} catch (...) {
  return unknown;
}

std::string read_text(const fs::path& file) {
  std::ifstream in(file, std::ios::binary);
  return {std::istreambuf_iterator<char>(in), {}};
}

// Returns true if a run of this configuration was killed here before its first checkpoint.
bool was_killed_early(const fs::path& folder, Checkpoint& checkpoint, const std::string& config) {
  if (config.empty() || read_text(folder / "config.toml") != config) return false;
  std::error_code none;
  return !fs::exists(folder / "summary.json", none) && newest_snapshot(checkpoint, folder, "?").empty();
}

void refuse_a_shared_run(const fs::path& path) {
  try {
    refuse_a_shared_folder(path.string());
  } catch (const Error& error) {
    refuse(std::string("the run's folder ") + error.what());
  }
}

// Makes a folder that only its owner can write to, whatever the umask. It must survive a loss of power, like its
// checkpoints, so each new name is synced to the disk. An existing folder's name, too: its maker may have been killed.
void make_folder(const fs::path& path, std::error_code& trouble) {
  const auto parent = path.has_parent_path() ? path.parent_path() : fs::path(".");
  std::error_code none;
  const bool is_new_parent = !fs::exists(parent, none);
  if (is_new_parent) make_folder(parent, trouble);
  if (trouble) return;
  if (::mkdir(path.c_str(), 0755) != 0 && errno != EEXIST) {
    trouble = {errno, std::generic_category()};
    return;
  }
  try {
    sync_checkpoint_folder(parent.string());
  } catch (const Error& error) {  // one that may be entered and not read
    log(Level::warning, "output", error.what());
  }
}

// The process and host of the run, for the message to others who find it locked.
std::string this_process() {
  char host[256] = "";
  if (::gethostname(host, sizeof host - 1) != 0) host[0] = '\0';
  return std::to_string(getpid()) + " on " + host;
}

// When the newest snapshot of a run was written: the newest time of what stands beside it.
fs::file_time_type saved_at(const fs::path& run, const fs::path& newest) {
  const auto place = newest == run ? run : newest.parent_path();
  std::error_code none;
  auto time = fs::last_write_time(place, none);
  for (fs::directory_iterator entry(place, none), end; !none && entry != end; entry.increment(none)) {
    std::error_code gone;
    time = std::max(time, fs::last_write_time(entry->path(), gone));
  }
  return time;
}

// wanted, wanted-2, wanted-3, …: of those that have checkpoints, the one that was written to last. Some may be gone.
fs::path newest_run(const fs::path& wanted, Checkpoint& checkpoint) {
  fs::path newest;
  fs::file_time_type newest_time;
  const fs::path parent = wanted.has_parent_path() ? wanted.parent_path() : fs::path(".");
  std::error_code trouble;
  for (fs::directory_iterator entry(parent, trouble), end; !trouble && entry != end; entry.increment(trouble)) {
    const auto name = entry->path().filename().string();
    const auto first = wanted.filename().string();
    const bool is_numbered = name.starts_with(first + "-") && name.size() > first.size() + 1 &&
                             name.find_first_not_of("0123456789", first.size() + 1) == std::string::npos;
    if (name != first && !is_numbered) continue;
    const auto snapshot = newest_snapshot(checkpoint, entry->path(), entry->path());  // whoever reads it hears why not
    if (snapshot.empty()) continue;
    const auto time = saved_at(entry->path(), snapshot);
    if (newest.empty() || time > newest_time) {
      newest = wanted.parent_path() / name;
      newest_time = time;
    }
  }
  const bool is_none = trouble == std::errc::no_such_file_or_directory || trouble == std::errc::not_a_directory;
  if (trouble && !is_none) refuse_to_guess(parent, trouble);
  return newest;
}

}  // namespace

bool OutputFolder::is_there(const fs::path& wanted, Checkpoint& checkpoint) {
  return !newest_run(wanted, checkpoint).empty();
}

std::optional<OutputFolder> OutputFolder::try_to_lock(const fs::path& path) {
  refuse_a_shared_run(path);
  const auto file = path / lock_name;
  const int lock = open(file.c_str(), O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600);
  if (lock < 0) refuse("cannot write to the run's folder: " + file.string() + ": " + std::strerror(errno));
  int failed = 0;
  do {
    failed = flock(lock, LOCK_EX | LOCK_NB);
  } while (failed != 0 && errno == EINTR);
  if (failed != 0 && errno == EWOULDBLOCK) {
    close(lock);
    return std::nullopt;
  }
  if (failed != 0) {
    log(Level::warning, "output",
        file.string() + ": cannot be locked (" + std::strerror(errno) +
            "): nothing keeps another run from this folder");
  }
  // For the message to whoever finds it locked; the lock itself does not depend on it.
  const auto holder = this_process() + "\n";
  if (ftruncate(lock, 0) == 0) (void)!write(lock, holder.data(), holder.size());
  if (failed == 0) return OutputFolder(path, lock);
  close(lock);
  return OutputFolder(path, -1);
}

OutputFolder OutputFolder::open_new(const fs::path& wanted, Checkpoint& checkpoint, const std::string& config) {
  for (int number = 1;; ++number) {
    const auto path = number == 1 ? wanted : fs::path(wanted.string() + "-" + std::to_string(number));
    std::error_code trouble;
    make_folder(path, trouble);
    if (!trouble && !fs::is_directory(path, trouble)) trouble = std::make_error_code(std::errc::not_a_directory);
    if (trouble) {
      refuse("cannot make the run's folder " + path.string() + ": " + trouble.message() +
             "; set [run] output to a folder that can be written to");
    }
    if (holds_a_run(path) && !was_killed_early(path, checkpoint, config)) continue;
    // Two processes that start at once: whoever locks it has it, the other takes the next number.
    auto folder = try_to_lock(path);
    if (!folder) continue;
    if (!holds_a_run(path)) {
      if (number > 1) {
        log(Level::info, "output",
            wanted.string() + " has a run already, which --resume goes on with; this one is in " + path.string());
      }
      return std::move(*folder);
    }
    if (folder->lock_ < 0 || !was_killed_early(path, checkpoint, config)) continue;
    log(Level::info, "output",
        path.string() + ": this run was killed here before its first checkpoint, and starts anew in the same folder");
    return std::move(*folder);
  }
}

OutputFolder OutputFolder::open_existing(const fs::path& wanted, Checkpoint& checkpoint, const std::string& from) {
  fs::path path;
  if (from.empty()) {
    path = newest_run(wanted, checkpoint);
    if (path.empty()) {
      refuse("there is no checkpoint to resume from in " + wanted.string() + "; leave --resume out to start a new run");
    }
  } else {
    path = fs::weakly_canonical(from);  // <run>/checkpoints/step-00000010, or any part of it
    for (int up = 0; up < 3 && newest_snapshot(checkpoint, path, "").empty(); ++up) path = path.parent_path();
    // Else it is a checkpoint that was moved elsewhere.
    if (newest_snapshot(checkpoint, path, "").empty()) return open_new(wanted, checkpoint);
  }
  if (auto folder = try_to_lock(path)) return std::move(*folder);
  std::string holder = "unknown";
  std::getline(std::ifstream(path / lock_name) >> std::ws, holder);
  refuse(path.string() + " is in use by another run (process " + holder + "); wait for it, or stop it first");
}

OutputFolder OutputFolder::open_part(const fs::path& run, std::int64_t rank) {
  const auto path = run / ("rank-" + std::to_string(rank));
  std::error_code trouble;
  make_folder(path, trouble);
  if (!trouble) return {path, -1};
  refuse("cannot make the rank's folder " + path.string() + ": " + trouble.message() +
         "; all ranks must see the run's folder: set [run] output to one on a shared file system");
}

void write_file(const fs::path& path, const std::string& text) {
  try {
    write_whole(path, text);
  } catch (const std::system_error& error) {
    throw Error(path.string() + ": cannot be written: " + error.code().message());
  }
}

OutputFolder::~OutputFolder() {
  if (lock_ >= 0) close(lock_);
}

}  // namespace vernier
