// docs/checkpoint-format.md is the specification of what is written here.
//
// The order of the writer is the one that Pillai et al., "All File Systems Are Not Created Equal" (OSDI 2014), find
// crash-consistent on every file system: files, their folder, the rename, the folder above.
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>
#include <ATen/MemoryOverlap.h>
#include <c10/core/InferenceMode.h>
#include <vernier/checkpoint_folder.h>
#include <vernier/plugin.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <cstdio>
#include <filesystem>
#include <map>
#include <optional>
#include <system_error>

#include "checkpoint_manifest.h"
#include "file.h"
#include "safetensors_file.h"

namespace vernier {

namespace fs = std::filesystem;
using Manifest = CheckpointManifest;

namespace {

constexpr const char* manifest_name = "manifest.json";
constexpr const char* model_name = checkpoint_model_file;
constexpr const char* state_name = checkpoint_state_file;
constexpr const char* format_name = checkpoint_format_name;
constexpr const char* step_prefix = "step-";
constexpr const char* temporary_prefix = ".tmp-";
constexpr const char* old_prefix = ".old-";  // before the name where it belongs
constexpr std::uint64_t longest_manifest = 1 << 28;

// Folders.

bool is_there(const std::string& path) {
  struct stat status = {};
  return ::lstat(path.c_str(), &status) == 0;
}

// A folder that only its owner reads and that is gone, unless it was renamed or is kept, when the object is.
class TemporaryFolder {
 public:
  explicit TemporaryFolder(const fs::path& parent)
      : path_((parent / (temporary_prefix + std::string("XXXXXX"))).string()) {
    if (::mkdtemp(path_.data()) == nullptr) fail_with_errno(parent.string(), "no folder can be made in it");
  }
  TemporaryFolder(const TemporaryFolder&) = delete;
  TemporaryFolder& operator=(const TemporaryFolder&) = delete;
  ~TemporaryFolder() {
    if (!is_kept_) remove();
  }
  // To be removed later, if at all.
  void keep() { is_kept_ = true; }
  void remove() const {
    std::error_code ignored;  // remove_unfinished_checkpoints() tries again
    fs::remove_all(path_, ignored);
  }
  const std::string& path() const { return path_; }
  std::string operator/(const char* name) const { return path_ + "/" + name; }

 private:
  std::string path_;
  bool is_kept_ = false;
};

// Where a checkpoint waits while another is put in its place.
std::string aside_of(const std::string& path) {
  fs::path place = fs::path(path).lexically_normal();
  if (!place.has_filename()) place = place.parent_path();
  return (place.parent_path() / (old_prefix + place.filename().string())).string();
}

std::string belonging_of(const fs::path& aside) {
  return (aside.parent_path() / aside.filename().string().substr(std::string_view(old_prefix).size())).string();
}

// Where a checkpoint is to be read: the writer that put it aside may have been killed before the new one was in place.
std::string standing(const std::string& path) {
  return !is_there(path) && is_there(aside_of(path)) ? aside_of(path) : path;
}

// After a writer that was killed, or one whose new checkpoint is on the disk.
void put_back_or_remove(const std::string& aside, const std::string& path) {
  if (!is_there(aside)) return;
  if (!is_there(path)) {
    if (::rename(aside.c_str(), path.c_str()) != 0) fail_with_errno(aside, "cannot be put back");
    return;
  }
  std::error_code trouble;
  fs::remove_all(aside, trouble);
  if (trouble) log(Level::warning, "checkpoint", aside + ": cannot be removed: " + trouble.message());
}

// The two change places at once, where the file system can; what stood there is then the temporary folder. Elsewhere it
// gets a name that says where it belongs, for it would be missed if the process ended between the two renames.
void put_in_place(const TemporaryFolder& temporary, const std::string& path) {
  if (::rename(temporary.path().c_str(), path.c_str()) == 0) return;
  if (errno != ENOTEMPTY && errno != EEXIST) fail_with_errno(path, "cannot be put in place");
  if (::renameat2(AT_FDCWD, temporary.path().c_str(), AT_FDCWD, path.c_str(), RENAME_EXCHANGE) == 0) return;
  if (errno != EINVAL && errno != ENOSYS) fail_with_errno(path, "cannot be put in place");
  const auto aside = aside_of(path);
  if (::rename(path.c_str(), aside.c_str()) != 0) fail_with_errno(path, "cannot be put aside");
  if (::rename(temporary.path().c_str(), path.c_str()) == 0) return;
  const int reason = errno;
  ::rename(aside.c_str(), path.c_str());
  errno = reason;
  fail_with_errno(path, "cannot be put in place");
}

// Writing.

Manifest::File write_tensors(const std::string& path, const Tensors& tensors, const Metadata& metadata,
                             const std::function<void(std::uint64_t)>& progress) {
  File file(path, O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW, 0600);
  auto written = write_safetensors(file, tensors, metadata, progress);
  file.finish();
  return written;
}

void write_text(const std::string& path, const std::string& text) {
  File file(path, O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW, 0600);
  file.write(text.data(), text.size());
  file.finish();
}

// Reading.

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

// What to compare each tensor's checksum with, when it was read.
SafetensorsFile::Seen compared_with(const SafetensorsFile& file, const Manifest::File& said) {
  return [&](const std::string& name, const Checksum& checksum) {
    const auto& saved = said.tensors.at(name).checksum;
    if (const auto is = checksum.digits(); !saved.empty() && is != saved) {
      fail(file.path(), name,
           "its bytes were changed: their checksum is " + is + ", and " + saved + " in the manifest");
    }
  };
}

const std::string& said_by(const SafetensorsFile& file, const std::string& key) {
  const auto found = file.metadata().find(key);
  if (found == file.metadata().end()) fail(file.path(), "was not written as a checkpoint: it has no " + key);
  return found->second;
}

// Version 1 was one file, with "model/" before the names of the model's tensors, and without checksums.
Manifest manifest_of_version_1(const SafetensorsFile& file) {
  const auto& format = said_by(file, "format");
  if (format == c10::str(format_name, " 2")) fail(file.path(), "has lost the manifest.json beside it");
  if (format != c10::str(format_name, " 1")) fail(file.path(), "was not written as a checkpoint");
  Manifest manifest;
  manifest.version = 1;
  const auto& step = said_by(file, "step");
  const auto [end, error] = std::from_chars(step.data(), step.data() + step.size(), manifest.step);
  if (error != std::errc() || end != step.data() + step.size()) fail(file.path(), "its step is no number: " + step);
  manifest.run = said_by(file, "run");
  manifest.versions["torch"] = said_by(file, "torch");
  manifest.files[state_name] = file.description();
  return manifest;
}

bool has(const std::string& path, const char* name) {
  return is_there(path + "/" + name);
}

StoredCheckpoint read_version_1(const std::string& path) {
  const SafetensorsFile file(path + "/" + state_name, O_NOFOLLOW);
  StoredCheckpoint stored{manifest_of_version_1(file), {}, {}};
  State all;
  all.tensors = file.read_all();
  stored.model = all.part("model").tensors;
  std::erase_if(all.tensors, [](const auto& entry) { return entry.first.starts_with("model/"); });
  stored.state = std::move(all.tensors);
  return stored;
}

// What copy_ would refuse midway, or take for another shape.
void require_in_it(const Tensors& live, const Manifest::File& saved, const std::string& path) {
  for (const auto& [name, tensor] : live) {
    const auto found = saved.tensors.find(name);
    if (found == saved.tensors.end()) fail(path, name, "it is not in the file");
    if (!tensor.defined() || tensor.layout() != torch::kStrided || tensor.is_meta() ||
        at::has_internal_overlap(tensor) == at::MemOverlap::Yes) {
      fail(path, name, "the live one has no memory of its own for each element");
    }
    if (tensor.is_inference() && !c10::InferenceMode::is_enabled()) {
      fail(path, name, "the live one was made in inference mode, and may change there only");
    }
    if (tensor.sizes() != at::IntArrayRef(found->second.shape)) {
      fail(path, name, "it is " + shape_of(found->second) + ", and the live one " + c10::str(tensor.sizes()));
    }
  }
}

void copy_all(const Tensors& saved, const Tensors& live) {
  for (const auto& [name, tensor] : live) tensor.copy_(saved.at(name));
}

// A file of a checkpoint, compared with what its manifest says.
class ComparedFile {
 public:
  ComparedFile(const std::string& path, const Manifest& manifest, const char* name)
      : said_(manifest.files.at(name)), file_(path + "/" + name, O_NOFOLLOW) {
    compare(file_, said_);
  }
  Tensors read() const { return file_.read_all(compared_with(file_, said_)); }
  void verify() const { file_.look_at_all(compared_with(file_, said_)); }
  void read_into(const Tensors& live) const {
    require_in_it(live, said_, file_.path());
    if (const auto straight = alike(live)) {
      for (const auto& [name, tensor] : *straight) tensor.unsafeGetTensorImpl()->bump_version();
      return file_.look_at_all_and_copy(compared_with(file_, said_), *straight);
    }
    copy_all(read(), live);
  }

 private:
  // What can be read straight into; one that is there under several names gets the last of its values, as by copy_.
  // Nothing where one of them cannot.
  std::optional<Tensors> alike(const Tensors& live) const {
    Tensors straight;
    std::map<const char*, std::pair<const char*, std::string>> memory;  // by its begin: its end, whose it is
    for (const auto& entry : file_.entries()) {
      const auto found = live.find(entry.name);
      if (found == live.end()) continue;
      const auto& tensor = found->second;
      const bool is_alike = tensor.is_cpu() && tensor.is_contiguous() && tensor.scalar_type() == entry.type &&
                            !tensor.is_conj() && !tensor.is_neg();
      if (!is_alike) return std::nullopt;
      straight[entry.name] = tensor;
      if (tensor.nbytes() == 0) continue;
      const auto* begin = static_cast<const char*>(tensor.const_data_ptr());
      auto& [end, name] = memory[begin];
      if (end != nullptr && end != begin + tensor.nbytes()) return std::nullopt;
      if (end != nullptr) straight.erase(std::min(name, entry.name));
      end = begin + tensor.nbytes();
      name = std::max(name, entry.name);
    }
    const char* last_end = nullptr;
    for (const auto& [begin, other] : memory) {
      if (begin < last_end) return std::nullopt;
      last_end = other.first;
    }
    return straight;
  }

  const Manifest::File& said_;
  SafetensorsFile file_;
};

}  // namespace

Manifest read_manifest(const std::string& place) {
  const auto path = standing(place);
  if (has(path, manifest_name))
    return parse_manifest(path + "/" + manifest_name, read_text(path + "/" + manifest_name));
  return manifest_of_version_1(SafetensorsFile(path + "/" + state_name, O_NOFOLLOW));
}

StoredCheckpoint read_checkpoint(const std::string& place) {
  const auto path = standing(place);
  if (!has(path, manifest_name)) return read_version_1(path);
  StoredCheckpoint stored{read_manifest(path), {}, {}};
  const ComparedFile model(path, stored.manifest, model_name), state(path, stored.manifest, state_name);
  stored.model = model.read();
  stored.state = state.read();
  return stored;
}

StoredCheckpoint read_checkpoint_model(const std::string& place) {
  const auto path = standing(place);
  if (!has(path, manifest_name)) {
    auto stored = read_version_1(path);
    stored.state.clear();
    return stored;
  }
  StoredCheckpoint stored{read_manifest(path), {}, {}};
  stored.model = ComparedFile(path, stored.manifest, model_name).read();
  return stored;
}

Manifest read_checkpoint_into(const std::string& place, const Tensors& live) {
  const auto path = standing(place);
  const torch::NoGradGuard no_grad;
  if (!has(path, manifest_name)) {
    auto stored = read_version_1(path);
    Manifest::File model;
    for (const auto& [name, tensor] : stored.model) {
      model.tensors[name] = {c10::toString(tensor.scalar_type()), tensor.sizes().vec(), ""};
    }
    require_in_it(live, model, path + "/" + state_name);
    copy_all(stored.model, live);
    return std::move(stored.manifest);
  }
  auto manifest = read_manifest(path);
  ComparedFile(path, manifest, model_name).read_into(live);
  return manifest;
}

Manifest verify_checkpoint(const std::string& place) {
  const auto path = standing(place);
  auto manifest = read_manifest(path);
  for (const auto& [name, file] : manifest.files) ComparedFile(path, manifest, name.c_str()).verify();
  return manifest;
}

bool is_checkpoint(const std::string& place) {
  const auto path = standing(place);
  return has(path, manifest_name) || has(path, state_name);
}

Manifest write_checkpoint(const std::string& path, Manifest about, const Tensors& model, const Tensors& state,
                          const std::function<void(std::uint64_t)>& progress) {
  const fs::path target = fs::path(path).lexically_normal();
  const std::string parent = target.has_parent_path() ? target.parent_path().string() : ".";
  refuse_a_shared_folder(parent);
  struct stat status = {};
  if (::lstat(path.c_str(), &status) == 0 && !S_ISDIR(status.st_mode)) fail(path, "is there, and is no checkpoint");
  const auto aside = aside_of(path);
  if (is_there(aside)) {
    sync_folder(parent);  // or a loss of power might take what stands at `path`, too
    put_back_or_remove(aside, path);
  }
  std::uint64_t done = 0;
  const auto tell = [&](std::uint64_t count) { progress(done += count); };
  const std::function<void(std::uint64_t)> piece = progress ? tell : std::function<void(std::uint64_t)>();
  TemporaryFolder temporary(parent);
  const std::string format = c10::str(format_name, " ", checkpoint_format_version);
  about.version = checkpoint_format_version;
  about.versions["vernier"] = VERNIER_VERSION;
  about.versions["torch"] = TORCH_VERSION;
  about.files[model_name] = write_tensors(temporary / model_name, model, {{"format", "pt"}}, piece);
  about.files[state_name] = write_tensors(temporary / state_name, state, {{"format", format}}, piece);
  write_text(temporary / manifest_name, manifest_text(temporary / manifest_name, about));
  sync_folder(temporary.path());
  put_in_place(temporary, path);
  temporary.keep();  // what stood there, until the other's name is on the disk
  sync_folder(parent);
  temporary.remove();
  put_back_or_remove(aside, path);
  return about;
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
  fs::directory_iterator entry(folder, trouble);
  for (; !trouble && entry != fs::directory_iterator(); entry.increment(trouble)) {
    const auto path = entry->path().string();
    const bool is_aside = entry->path().filename().string().starts_with(old_prefix);
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
  const bool is_shared = (status.st_mode & (S_IWGRP | S_IWOTH)) != 0 && (status.st_mode & S_ISVTX) == 0;
  if (is_shared) fail(path, "can be written to by others; chmod go-w it, or take another folder");
}

void sync_checkpoint_folder(const std::string& folder) {
  sync_folder(folder);
}

void remove_unfinished_checkpoints(const std::string& folder) {
  std::vector<fs::path> temporary, aside;
  std::error_code trouble;
  for (fs::directory_iterator entry(folder, trouble), end; !trouble && entry != end; entry.increment(trouble)) {
    const auto name = entry->path().filename().string();
    if (name.starts_with(temporary_prefix)) temporary.push_back(entry->path());
    if (name.starts_with(old_prefix)) aside.push_back(entry->path());
  }
  if (temporary.empty() && aside.empty()) return;
  sync_folder(folder);  // what took their place may not be on the disk yet
  for (const auto& path : aside) put_back_or_remove(path, belonging_of(path));
  for (const auto& path : temporary) {
    fs::remove_all(path, trouble);
    if (trouble) log(Level::warning, "checkpoint", path.string() + ": cannot be removed: " + trouble.message());
  }
}

}  // namespace vernier
