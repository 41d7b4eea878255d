#include "kept_checkpoints.h"

#include <vernier/checkpoint_split.h>
#include <vernier/error.h>
#include <vernier/foreign_code.h>

#include <filesystem>

#include "common/config/config.h"
#include "common/own_runs.h"
#include "files/weights.h"
#include "output/recorded_run.h"
#include "wiring/wiring.h"

namespace vernier {

namespace fs = std::filesystem;

namespace {

// Returns the folder of the run that a path is or lies in; "" if there is no config.toml.
std::string run_at(const std::string& path) {
  auto folder = fs::path(path);
  std::error_code none;
  for (int up = 0; up < 3; ++up) {
    if (fs::exists(folder / "config.toml", none)) return folder.string();
    if (!folder.has_filename()) folder = folder.parent_path();
    folder = folder.has_parent_path() ? folder.parent_path() : fs::path(".");
  }
  return "";
}

// The size of a file, or of all files in a folder.
std::uint64_t bytes_at(const fs::path& path) {
  std::error_code trouble;
  if (!fs::is_directory(path, trouble)) {
    const auto bytes = fs::file_size(path, trouble);
    return trouble ? 0 : bytes;
  }
  std::uint64_t sum = 0;
  for (fs::recursive_directory_iterator entry(path, trouble), end; !trouble && entry != end; entry.increment(trouble)) {
    std::error_code none;
    if (entry->is_regular_file(none)) sum += entry->file_size(none);
  }
  return sum;
}

}  // namespace

KeptCheckpoints::KeptCheckpoints(const std::string& path, const Host& host) : path_(path), run_(run_at(path)) {
  std::error_code none;
  if (!is_checkpoint(path) && !fs::exists(path, none)) refuse(path + ": there is no such file or folder");
  const auto inside = fs::path(run_.empty() ? path : run_) / "checkpoints";
  folder_ = fs::is_directory(inside, none) ? inside.string() : path;
  if (!run_.empty()) open_plugin(run_ + "/config.toml", host);
  const bool is_all = fs::equivalent(path, run_, none) || fs::equivalent(path, inside, none);
  if (plugin_ != nullptr && is_all) paths_ = plugin_->snapshots(run_);
  if (paths_.empty()) paths_ = checkpoints_at(path);
  if (paths_.empty() && plugin_ != nullptr && !is_all) paths_ = {path};
}

// rolling's checkpoints have the common format, which can be read without the plugin that wrote them.
void KeptCheckpoints::open_plugin(const std::string& configuration, const Host& host) try {
  const auto table = table_of(load_config({configuration}, {}), Checkpoint::role);
  if (const auto use = use_of(table); use == Checkpoint::standard || use == "none") return;
  const ForeignRun others(foreign(run_));
  auto made = make(host, Checkpoint::role, table);
  plugin_.reset(static_cast<Checkpoint*>(made.plugin.release()));
} catch (...) {
  const auto found = checkpoints_at(path_);
  if (found.empty() || !is_checkpoint(found.front())) throw;
}

void KeptCheckpoints::refuse_none() const {
  if (paths_.empty()) refuse(path_ + ": is neither a checkpoint nor the folder of a run with one");
}

StoredCheckpoint KeptCheckpoints::read(const std::string& checkpoint) const {
  if (plugin_ == nullptr || is_checkpoint(checkpoint)) return read_checkpoint(checkpoint);
  std::optional<State> snapshot;
  TrainerRun run;
  run.output = run_;
  try {
    snapshot = read_snapshot(*plugin_, run, checkpoint);
    if (!snapshot) throw Error(plugin_->id() + " finds no checkpoint here");
  } catch (...) {
    rethrow_of_run(checkpoint, Error::Kind::training);
  }
  auto stored = split_snapshot(*snapshot);
  stored.manifest.step = snapshot->has("run/step") ? snapshot->integer("run/step") : -1;
  stored.manifest.run = fs::path(run_).filename().string();
  stored.manifest.version = 0;  // the plugin's own
  auto& file = stored.manifest.files[fs::path(checkpoint).filename().string()];
  if (checkpoint != run_) file.bytes = bytes_at(checkpoint);
  for (const auto& [name, tensor] : snapshot->tensors) {
    file.tensors[name];
    if (checkpoint == run_ && tensor.defined()) file.bytes += tensor.nbytes();
  }
  return stored;
}

CheckpointManifest KeptCheckpoints::verify(const std::string& checkpoint) const {
  if (plugin_ == nullptr || is_checkpoint(checkpoint)) return verify_checkpoint(checkpoint);
  return read(checkpoint).manifest;
}

CheckpointManifest KeptCheckpoints::glance(const std::string& checkpoint) const {
  if (plugin_ != nullptr && !is_checkpoint(checkpoint)) return read(checkpoint).manifest;
  auto manifest = read_manifest(checkpoint);
  for (const auto& [name, file] : manifest.files) {
    const auto whole = checkpoint + "/" + name;
    std::error_code trouble;
    const auto size = fs::file_size(whole, trouble);
    if (trouble) throw Error(whole + ": cannot be read: " + trouble.message());
    if (size != file.bytes) {
      throw Error(c10::str(whole, ": has ", size, " bytes, and ", file.bytes, " in the manifest"));
    }
  }
  return manifest;
}

}  // namespace vernier
