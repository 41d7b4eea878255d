// rolling: saves the run at regular steps, to <run.output>/checkpoints/step-00000100/state.safetensors, and keeps the
// newest few.
//
//   every = 500   steps from one checkpoint to the next; 0: only where the run ends or is stopped
//   keep  = 3     checkpoints that stay; older ones are removed once a newer one is whole
//
// Where a run goes on from before its newest checkpoint, the later ones stay, renamed to abandoned-step-00000200.
//
// A checkpoint is written beside its place, brought to the disk, renamed, and the folder is brought to the disk: the
// order that Pillai et al., "All File Systems Are Not Created Equal" (OSDI 2014), finds crash-consistent on every file
// system.
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>
#include <vernier/error.h>
#include <vernier/roles.h>
#include <vernier/safetensors.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <chrono>
#include <filesystem>
#include <system_error>

namespace {

namespace fs = std::filesystem;
using vernier::Error;
using vernier::Run;
using vernier::State;

constexpr const char* file_name = "state.safetensors";
constexpr const char* step_prefix = "step-";
constexpr const char* temporary_prefix = ".tmp-";
constexpr const char* abandoned_prefix = "abandoned-";
constexpr const char* format_name = "vernier.checkpoint ";
constexpr int format_version = 1;

[[noreturn]] void fail_with_errno(const fs::path& path, const char* doing) {
  throw Error(path.string() + ": " + doing + ": " + std::generic_category().message(errno));
}

void sync_folder(const fs::path& folder) {
  const int descriptor = ::open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (descriptor < 0) fail_with_errno(folder, "cannot be opened");
  const bool failed = ::fsync(descriptor) != 0 && errno != EINVAL;  // EINVAL: this file system has no such thing
  const int reason = errno;
  ::close(descriptor);
  errno = reason;
  if (failed) fail_with_errno(folder, "cannot be brought to the disk");
}

std::string name_of(std::int64_t step) {
  const std::string digits = std::to_string(step);
  return step_prefix + std::string(8 - std::min<std::size_t>(digits.size(), 8), '0') + digits;
}

// -1 where the folder is no checkpoint.
std::int64_t step_of(const fs::path& folder) {
  const std::string name = folder.filename().string();
  if (!name.starts_with(step_prefix)) return -1;
  std::int64_t step = -1;
  const char *first = name.data() + std::string_view(step_prefix).size(), *last = name.data() + name.size();
  const auto [end, error] = std::from_chars(first, last, step);
  return error == std::errc() && end == last ? step : -1;
}

// The newest first.
std::vector<fs::path> checkpoints_in(const fs::path& folder) {
  std::vector<fs::path> found;
  std::error_code trouble;
  const fs::directory_iterator entries(folder, trouble);
  if (trouble && trouble != std::errc::no_such_file_or_directory && trouble != std::errc::not_a_directory) {
    throw Error(folder.string() + ": cannot be read: " + trouble.message());
  }
  for (const auto& entry : entries) {
    if (step_of(entry.path()) >= 0) found.push_back(entry.path());
  }
  std::ranges::sort(found, std::ranges::greater(), step_of);
  return found;
}

// A folder that only its owner reads and that is gone, unless it was renamed, when the object is.
class TemporaryFolder {
 public:
  explicit TemporaryFolder(const fs::path& parent) {
    std::string pattern = (parent / (std::string(temporary_prefix) + "XXXXXX")).string();
    if (::mkdtemp(pattern.data()) == nullptr) fail_with_errno(parent, "no folder can be made in it");
    path_ = pattern;
  }
  TemporaryFolder(const TemporaryFolder&) = delete;
  TemporaryFolder& operator=(const TemporaryFolder&) = delete;
  ~TemporaryFolder() {
    std::error_code ignored;  // the next write tries again
    fs::remove_all(path_, ignored);
  }
  const fs::path& path() const { return path_; }

 private:
  fs::path path_;
};

class Rolling final : public vernier::Checkpoint {
 public:
  explicit Rolling(vernier::Options& options)
      : every_(options.get("every", 500,
                           "steps from one checkpoint to the next; 0: only where the run ends or is stopped",
                           vernier::at_least(0))),
        keep_(options.get("keep", 3, "checkpoints that stay, the newest ones", vernier::at_least(1))) {}

  bool due(const Run& run) override { return every_ > 0 && run.step % every_ == 0; }

  void write(const State& snapshot, Run& run) override {
    const auto start = std::chrono::steady_clock::now();
    const fs::path folder = make_folder(run);
    remove_leftovers(folder);
    const TemporaryFolder temporary(folder);
    const std::uintmax_t bytes = write_file(temporary.path() / file_name, snapshot, run);
    const fs::path target = folder / name_of(run.step);
    set_aside_later(folder, run.step);
    move(temporary.path(), target);
    remove_old(folder);
    const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - start;
    run.notice("checkpoint_saved",
               {{"path", target.string()}, {"seconds", seconds.count()}, {"bytes", static_cast<std::int64_t>(bytes)}});
  }

  std::optional<State> read(const Run& run, const std::string& from) override {
    if (from.empty()) return read_newest(fs::path(run.output) / "checkpoints");
    const fs::path file = fs::path(from) / file_name;
    if (std::error_code none; fs::exists(file, none)) return read_file(file);
    if (auto state = read_newest(fs::path(from) / "checkpoints")) return state;
    throw Error(from + ": is neither a checkpoint (it has no " + file_name + ") nor the folder of a run with one",
                Error::Kind::configuration);
  }

 private:
  static fs::path make_folder(const Run& run) {
    const fs::path folder = fs::path(run.output) / "checkpoints";
    if (::mkdir(folder.c_str(), 0700) == 0) {
      sync_folder(run.output);
    } else if (errno != EEXIST) {
      fail_with_errno(folder, "cannot be made");
    }
    return folder;
  }

  // Of processes that were killed while they wrote: the runner lets one process at a time into a run's folder.
  void remove_leftovers(const fs::path& folder) const {
    std::error_code none;
    for (const auto& entry : fs::directory_iterator(folder, none)) {
      if (entry.path().filename().string().starts_with(temporary_prefix)) remove(entry.path());
    }
  }

  void remove(const fs::path& path) const {
    std::error_code trouble;
    fs::remove_all(path, trouble);
    if (trouble) warn(path.string(), ": cannot be removed: ", trouble.message());
  }

  static std::uintmax_t write_file(const fs::path& path, const State& snapshot, const Run& run) {
    // Made here for its mode; what writes the tensors leaves the mode of a file that exists.
    const int descriptor = ::open(path.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0600);
    if (descriptor < 0) fail_with_errno(path, "cannot be made");
    ::close(descriptor);
    vernier::save_safetensors(path.string(), snapshot.tensors,
                              {{"format", format_name + std::to_string(format_version)},
                               {"step", std::to_string(run.step)},
                               {"run", run.name},
                               {"torch", TORCH_VERSION}});
    return fs::file_size(path);
  }

  // A checkpoint of the same step is replaced: it may be one that could not be read.
  static void move(const fs::path& temporary, const fs::path& target) {
    sync_folder(temporary);
    if (::rename(temporary.c_str(), target.c_str()) != 0) {
      if (errno != ENOTEMPTY && errno != EEXIST) fail_with_errno(target, "cannot be put in place");
      const fs::path file = target / file_name;
      if (::rename((temporary / file_name).c_str(), file.c_str()) != 0) fail_with_errno(file, "cannot be replaced");
      sync_folder(target);
    }
    sync_folder(target.parent_path());
  }

  // They are of a past that the run left when it was resumed from before them, and would be taken for its newest.
  void set_aside_later(const fs::path& folder, std::int64_t step) const {
    for (const auto& checkpoint : checkpoints_in(folder)) {
      if (step_of(checkpoint) <= step) break;
      const fs::path aside = folder / (abandoned_prefix + checkpoint.filename().string());
      remove(aside);
      if (::rename(checkpoint.c_str(), aside.c_str()) != 0) fail_with_errno(checkpoint, "cannot be renamed");
      warn("the run went back to before ", checkpoint.string(), ", which is kept as ", aside.filename().string());
    }
  }

  void remove_old(const fs::path& folder) const {
    const auto checkpoints = checkpoints_in(folder);
    for (std::size_t i = static_cast<std::size_t>(keep_); i < checkpoints.size(); ++i) {
      // Renamed first, so that a process that is killed here leaves no half of a checkpoint behind.
      const fs::path aside = folder / (temporary_prefix + checkpoints[i].filename().string());
      const bool renamed = ::rename(checkpoints[i].c_str(), aside.c_str()) == 0;
      remove(renamed ? aside : checkpoints[i]);
    }
  }

  std::optional<State> read_newest(const fs::path& folder) const {
    const auto checkpoints = checkpoints_in(folder);
    std::string trouble;
    for (const auto& checkpoint : checkpoints) {
      try {
        auto state = read_file(checkpoint / file_name);
        if (!trouble.empty()) warn("resuming from ", checkpoint.string(), ", the newest that can be read");
        return state;
      } catch (const Error& error) {
        if (error.kind() == Error::Kind::configuration) throw;  // whole, but not for this version
        warn(error.what());
        if (trouble.empty()) trouble = error.what();
      }
    }
    if (checkpoints.empty()) return std::nullopt;
    throw Error("no checkpoint in " + folder.string() + " can be read; the newest: " + trouble);
  }

  static State read_file(const fs::path& path) {
    auto file = vernier::read_safetensors(path.string());
    check_version(path, file.metadata["format"]);
    State state;
    state.tensors = std::move(file.tensors);
    return state;
  }

  static void check_version(const fs::path& path, const std::string& format) {
    const std::string own = format_name + std::to_string(format_version);
    if (format == own) return;
    if (!format.starts_with(format_name)) throw Error(path.string() + ": was not written as a checkpoint");
    throw Error(path.string() + ": its format is '" + format + "', this version reads '" + own +
                    "'; resume with the version that wrote it",
                Error::Kind::configuration);
  }

  std::int64_t every_;
  std::int64_t keep_;
};

}  // namespace

VERNIER_PLUGIN(Rolling, "rolling", "1.0.0")
