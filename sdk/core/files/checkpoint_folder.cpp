// Writes and reads checkpoints as docs/reference/checkpoint-format.md specifies them.
//
// The writer syncs the files, then their folder, renames it, and syncs the folder above. Pillai et al., "All File
// Systems Are Not Created Equal" (OSDI 2014), find this order crash-consistent on every file system.
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>
#include <vernier/checkpoint_folder.h>
#include <vernier/checkpoint_split.h>
#include <vernier/plugin.h>
#include <vernier/unfinished_checkpoint.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <filesystem>
#include <system_error>

#include "checkpoint_manifest.h"
#include "file.h"
#include "safetensors_file.h"
#include "shards.h"

namespace vernier {

namespace fs = std::filesystem;
using Manifest = CheckpointManifest;

namespace {

constexpr const char* manifest_name = "manifest.json";
constexpr const char* model_name = checkpoint_model_file;
constexpr const char* state_name = checkpoint_state_file;
const std::string state_format = c10::str(checkpoint_format_name, " ", checkpoint_format_version);
constexpr const char* step_prefix = "step-";
constexpr const char* temporary_prefix = ".tmp-";
constexpr const char* old_prefix = ".old-";  // before the name to which it belongs
constexpr std::uint64_t longest_manifest = 1 << 28;

bool is_there(const std::string& path) {
  struct stat status = {};
  return ::lstat(path.c_str(), &status) == 0;
}

// The path of an old checkpoint while a new one is put in its place.
std::string aside_of(const std::string& path) {
  fs::path place = fs::path(path).lexically_normal();
  if (!place.has_filename()) place = place.parent_path();
  return (place.parent_path() / (old_prefix + place.filename().string())).string();
}

std::string belonging_of(const fs::path& aside) {
  return (aside.parent_path() / aside.filename().string().substr(std::string_view(old_prefix).size())).string();
}

// The path to read: a writer may have been killed after it put the old checkpoint aside.
std::string standing(const std::string& path) {
  return !is_there(path) && is_there(aside_of(path)) ? aside_of(path) : path;
}

// For a checkpoint that a writer put aside, after the writer was killed or its new checkpoint is on the disk.
void put_back_or_remove(const std::string& aside, const std::string& path) {
  if (!is_there(aside)) return;
  if (!is_there(path)) {
    if (::rename(aside.c_str(), path.c_str()) != 0) fail_with_errno(aside, "cannot be put back");
    return;
  }
  std::error_code trouble;
  remove_all(aside, trouble);
  if (trouble) log(Level::warning, "checkpoint", aside + ": cannot be removed: " + trouble.message());
}

Manifest::File write_tensors(const std::string& path, const Tensors& tensors, const Metadata& metadata,
                             const std::function<void(std::uint64_t)>& progress) {
  File file(path, O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW, 0600);
  auto written = write_safetensors(file, tensors, metadata, progress);
  file.finish();
  return written;
}

// Called with the bytes of each write; empty where nobody asks for the progress.
CheckpointProgress adding_up(const CheckpointProgress& progress) {
  if (!progress) return {};
  return [&progress, done = std::uint64_t{0}](std::uint64_t count) mutable { progress(done += count); };
}

void write_text(const std::string& path, const std::string& text) {
  File file(path, O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW, 0600);
  file.write(text.data(), text.size());
  file.finish();
}

std::string read_text(const std::string& path) {
  const File file(path, O_RDONLY | O_NONBLOCK | O_NOFOLLOW);
  const auto size = file.size();
  if (size > longest_manifest) fail(path, "is not a manifest: it has " + std::to_string(size) + " bytes");
  std::string text(size, '\0');
  file.read(text.data(), size, 0);
  return text;
}

std::string shape_of(const Manifest::Tensor& tensor) {
  return tensor.dtype + " " + c10::str(c10::IntArrayRef(tensor.shape));
}

void compare(const SafetensorsFile& file, const Manifest::File& said) {
  const auto found = file.description();
  for (const auto& [name, tensor] : said.tensors) {
    const auto other = found.tensors.find(name);
    if (other == found.tensors.end()) fail(file.path(), name, "it is in the manifest and not in the file");
    if (shape_of(other->second) != shape_of(tensor)) {
      fail(file.path(), name, "it is " + shape_of(other->second) + ", and " + shape_of(tensor) + " in the manifest");
    }
  }
  for (const auto& [name, tensor] : found.tensors) {
    if (said.tensors.count(name) == 0) fail(file.path(), name, "it is in the file and not in the manifest");
  }
  if (found.bytes != said.bytes) {
    fail(file.path(),
         "has " + std::to_string(found.bytes) + " bytes, and " + std::to_string(said.bytes) + " in the manifest");
  }
  if (found.header_checksum != said.header_checksum) {
    fail(file.path(), "its header was changed: its checksum is " + found.header_checksum + ", and " +
                          said.header_checksum + " in the manifest");
  }
}

// A safetensors file of a checkpoint. The constructor compares its header with the manifest, the functions its tensors.
class CheckedFile {
 public:
  CheckedFile(const std::string& folder, const Manifest& manifest, const std::string& name)
      : said_(manifest.files.at(name)), file_(folder + "/" + name, O_NOFOLLOW) {
    compare(file_, said_);
  }
  // Checks all tensors and returns them, without those that OwnPart leaves out. prefix: begins their names in a
  // snapshot.
  Tensors read(const std::string& prefix = "") const {
    return file_.read_all(check(), [&](const SafetensorsFile::Entry& entry) {
      return OwnPart::leaves_out(prefix + entry.name, entry.end - entry.begin);
    });
  }
  void verify() const { file_.verify_all(check()); }

 private:
  SafetensorsFile::Check check() const {
    return [this](const std::string& name, const Checksum& checksum) {
      const std::string is = checksum.digits(), saved = said_.tensors.at(name).checksum;
      if (is == saved) return;
      fail(file_.path(), name,
           "its bytes were changed: their checksum is " + is + ", and " + saved + " in the manifest");
    };
  }

  const Manifest::File& said_;
  SafetensorsFile file_;
};

bool is_of_model(const std::string& file) {
  return file.starts_with("model");
}

// The index of a model in several files; "" for a model in one.
std::string index_of(const std::string& folder, const CheckpointFiles& files) {
  std::uint64_t bytes = 0;
  std::map<std::string, std::string> places;
  for (const auto& [name, said] : files) {
    if (name.find("-of-") == std::string::npos) continue;
    const SafetensorsFile file(folder + "/" + name, O_NOFOLLOW);
    for (const auto& entry : file.entries()) {
      bytes += entry.end - entry.begin;
      places[entry.name] = name;
    }
  }
  return places.empty() ? "" : index_text(folder, bytes, places);
}

// Called once all ranks have written. A file with a part of the model gets another name than one with the whole, so
// that nobody takes it for that. Several files get the names and the index that Hugging Face's libraries read.
void name_model_files(const std::string& folder, CheckpointFiles& files) {
  std::vector<std::string> parts = {model_name};
  for (const auto& [name, said] : files) {
    if (is_of_model(name) && name != model_name) parts.push_back(name);
  }
  const bool is_shared = files.at(state_name).tensors.contains("run/model_parts");
  if (parts.size() == 1 && !is_shared) return;
  for (std::size_t i = 0; i < parts.size(); ++i) {
    const auto name = is_shared ? checkpoint_shared_file : checkpoint_model_part(i + 1, parts.size());
    if (::rename((folder + "/" + parts[i]).c_str(), (folder + "/" + name).c_str()) != 0) {
      fail_with_errno(folder + "/" + parts[i], "cannot be renamed");
    }
    files[name] = std::move(files.at(parts[i]));
    files.erase(parts[i]);
  }
  if (const auto index = index_of(folder, files); !index.empty()) {
    write_text(folder + "/" + checkpoint_index_file, index);
  }
}

}  // namespace

Manifest read_manifest(const std::string& place) {
  const auto path = standing(place) + "/" + manifest_name;
  return parse_manifest(path, read_text(path));
}

StoredCheckpoint read_checkpoint(const std::string& place) {
  const auto path = standing(place);
  StoredCheckpoint stored{read_manifest(path), {}, {}};
  std::map<std::string, CheckedFile> files;  // all are compared with the manifest before one is read
  for (const auto& [name, said] : stored.manifest.files) files.try_emplace(name, path, stored.manifest, name);
  for (const auto& [name, file] : files) {
    const bool is_model = is_of_model(name);
    auto& tensors = (is_model ? stored.model : stored.state).tensors;
    auto read = file.read(is_model ? "model/" : "");
    tensors.merge(read);
    if (read.empty()) continue;
    fail(path, read.begin()->first,
         "it is in " + name + " and in another file of the " + (is_model ? "model" : "state"));
  }
  return stored;
}

StoredCheckpoint read_checkpoint_model(const std::string& place) {
  const auto path = standing(place);
  StoredCheckpoint stored{read_manifest(path), {}, {}};
  for (const auto& [name, said] : stored.manifest.files) {
    if (is_of_model(name)) stored.model.tensors.merge(CheckedFile(path, stored.manifest, name).read());
  }
  return stored;
}

Manifest verify_checkpoint(const std::string& place) {
  const auto path = standing(place);
  auto manifest = read_manifest(path);
  for (const auto& [name, file] : manifest.files) CheckedFile(path, manifest, name).verify();
  const auto index = path + "/" + checkpoint_index_file, text = index_of(path, manifest.files);
  if (!text.empty() && read_text(index) != text) fail(index, "was changed: it does not list the files of the manifest");
  return manifest;
}

bool is_checkpoint(const std::string& place) {
  return is_there(standing(place) + "/" + manifest_name);
}

namespace {

// Returns whether a folder has more than the files of a checkpoint that lost its manifest.
bool has_other_files(const std::string& folder) {
  return std::ranges::any_of(fs::directory_iterator(folder), [](const fs::directory_entry& entry) {
    const auto name = entry.path().filename().string();
    const bool is_named_so = name.starts_with("model") || name.starts_with("state");
    const bool is_kind = name.ends_with(".safetensors") || name.ends_with(".json");
    return !entry.is_regular_file() || !is_named_so || !is_kind;
  });
}

}  // namespace

UnfinishedCheckpoint::UnfinishedCheckpoint(const std::string& path) : path_(path), aside_(aside_of(path)) {
  const fs::path target = fs::path(path).lexically_normal();
  parent_ = target.has_parent_path() ? target.parent_path().string() : ".";
  refuse_a_shared_folder(parent_);
  struct stat status = {};
  if (::lstat(path.c_str(), &status) == 0 && !S_ISDIR(status.st_mode)) fail(path, "is there, and is not a checkpoint");
  std::error_code none;
  if (fs::is_directory(path, none) && !is_there(path + "/" + manifest_name) && has_other_files(path)) {
    fail(path, "is a folder with other files, and not a checkpoint; choose another path, or remove this folder");
  }
  if (is_there(aside_)) {
    sync_folder(parent_);  // or a loss of power might take the checkpoint at `path` too
    put_back_or_remove(aside_, path);
  }
  folder_ = (fs::path(parent_) / (temporary_prefix + std::string("XXXXXX"))).string();
  if (::mkdtemp(folder_.data()) == nullptr) fail_with_errno(parent_, "no folder can be made in it");
}

UnfinishedCheckpoint::~UnfinishedCheckpoint() {
  std::error_code ignored;  // remove_unfinished_checkpoints() tries again
  if (!is_kept_) remove_all(folder_, ignored);
}

// Exchanges the two folders at once if the file system can; the old checkpoint is then the temporary folder. Otherwise
// the old one gets a name that says where it belongs, because the process may end between the two renames.
void UnfinishedCheckpoint::put_in_place() const {
  if (::rename(folder_.c_str(), path_.c_str()) == 0) return;
  if (errno != ENOTEMPTY && errno != EEXIST) fail_with_errno(path_, "cannot be put in place");
  if (::renameat2(AT_FDCWD, folder_.c_str(), AT_FDCWD, path_.c_str(), RENAME_EXCHANGE) == 0) return;
  if (errno != EINVAL && errno != ENOSYS) fail_with_errno(path_, "cannot be put in place");
  if (::rename(path_.c_str(), aside_.c_str()) != 0) fail_with_errno(path_, "cannot be put aside");
  if (::rename(folder_.c_str(), path_.c_str()) == 0) return;
  const int reason = errno;
  ::rename(aside_.c_str(), path_.c_str());
  errno = reason;
  fail_with_errno(path_, "cannot be put in place");
}

Manifest UnfinishedCheckpoint::complete(Manifest about) {
  about.version = checkpoint_format_version;
  about.versions["vernier"] = VERNIER_VERSION;
  about.versions["torch"] = TORCH_VERSION;
  name_model_files(folder_, about.files);
  const auto manifest = folder_ + "/" + manifest_name;
  write_text(manifest, manifest_text(manifest, about));
  sync_folder(folder_);
  put_in_place();
  is_kept_ = true;  // it may be the old checkpoint, which stays until the name of the new one is on the disk
  sync_folder(parent_);
  std::error_code ignored;  // remove_unfinished_checkpoints() tries again
  remove_all(folder_, ignored);
  put_back_or_remove(aside_, path_);
  return about;
}

CheckpointFiles write_checkpoint_files(const std::string& folder, const State& model, const State& state,
                                       const CheckpointProgress& progress) {
  const auto add = adding_up(progress);
  CheckpointFiles files;
  files[model_name] = write_tensors(folder + "/" + model_name, model.tensors, {{"format", "pt"}}, add);
  files[state_name] = write_tensors(folder + "/" + state_name, state.tensors, {{"format", state_format}}, add);
  return files;
}

CheckpointFiles write_checkpoint_shard(const std::string& folder, std::int64_t rank, const State& state,
                                       const CheckpointProgress& progress) {
  const auto add = adding_up(progress);
  const auto [about, model, rest] = split_snapshot(state);
  const auto name = checkpoint_shard_file(rank), model_part = checkpoint_model_shard_file(rank);
  CheckpointFiles files;
  files[name] = write_tensors(folder + "/" + name, rest.tensors, {{"format", state_format}}, add);
  if (model.tensors.empty()) return files;
  files[model_part] = write_tensors(folder + "/" + model_part, model.tensors, {{"format", "pt"}}, add);
  return files;
}

Manifest write_checkpoint(const std::string& path, Manifest about, const State& model, const State& state,
                          const CheckpointProgress& progress) {
  UnfinishedCheckpoint unfinished(path);
  about.files = write_checkpoint_files(unfinished.folder(), model, state, progress);
  return unfinished.complete(std::move(about));
}

std::string checkpoint_name(std::int64_t step) {
  const std::string digits = std::to_string(step);
  return step_prefix + std::string(8 - std::min<std::size_t>(digits.size(), 8), '0') + digits;
}

std::int64_t step_of_checkpoint(const std::string& path) {
  std::string name = fs::path(path).filename().string();
  if (name.starts_with(old_prefix)) name.erase(0, std::string_view(old_prefix).size());
  if (!name.starts_with(step_prefix)) return -1;
  std::int64_t step = -1;
  const char *first = name.data() + std::string_view(step_prefix).size(), *last = name.data() + name.size();
  const auto [end, error] = std::from_chars(first, last, step);
  return error == std::errc() && end == last ? step : -1;
}

std::vector<std::string> checkpoints_in(const std::string& folder) {
  std::vector<std::string> found;
  std::error_code trouble;
  for (const auto& name : names_in(folder, trouble)) {
    const auto path = (fs::path(folder) / name).string();
    const bool is_aside = name.starts_with(old_prefix);
    if (step_of_checkpoint(path) < 0 || (is_aside && is_there(belonging_of(path)))) continue;
    found.push_back(path);
  }
  if (trouble && trouble != std::errc::no_such_file_or_directory && trouble != std::errc::not_a_directory) {
    fail(folder, "cannot be read: " + trouble.message());
  }
  std::ranges::sort(found, std::ranges::greater(), step_of_checkpoint);
  return found;
}

void refuse_a_shared_folder(const std::string& path) {
  struct stat status = {};
  if (::lstat(path.c_str(), &status) != 0) fail_with_errno(path, "cannot be looked at");
  if (S_ISLNK(status.st_mode)) fail(path, "is a symbolic link; give the folder itself");
  if (!S_ISDIR(status.st_mode)) fail(path, "is not a folder");
  const bool is_of_another = status.st_uid != ::geteuid() && status.st_uid != 0;
  if (is_of_another) {
    fail(path, "belongs to another user (id " + std::to_string(status.st_uid) +
                   "), who can write to it; chown it, or take another folder");
  }
  const bool is_shared = (status.st_mode & (S_IWGRP | S_IWOTH)) != 0;
  if (is_shared) fail(path, "can be written to by others; chmod go-w it, or take another folder");
}

void sync_checkpoint_folder(const std::string& folder) {
  sync_folder(folder);
}

void remove_unfinished_checkpoints(const std::string& folder) {
  std::vector<fs::path> temporary, aside;
  std::error_code trouble;
  for (const auto& name : names_in(folder, trouble)) {
    if (name.starts_with(temporary_prefix)) temporary.push_back(fs::path(folder) / name);
    if (name.starts_with(old_prefix)) aside.push_back(fs::path(folder) / name);
  }
  if (temporary.empty() && aside.empty()) return;
  sync_folder(folder);  // the checkpoints that took their place may not be on the disk yet
  for (const auto& path : aside) put_back_or_remove(path, belonging_of(path));
  for (const auto& path : temporary) {
    remove_all(path.string(), trouble);
    if (trouble) log(Level::warning, "checkpoint", path.string() + ": cannot be removed: " + trouble.message());
  }
}

}  // namespace vernier
