// docs/checkpoint-format.md is the specification of what is written here.
//
// The order of the writer is the one that Pillai et al., "All File Systems Are Not Created Equal" (OSDI 2014), find
// crash-consistent on every file system: files, their folder, the rename, the folder above.
#include <ATen/Parallel.h>
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>
#include <vernier/checkpoint_folder.h>
#include <vernier/plugin.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <charconv>
#include <cstdio>
#include <exception>
#include <filesystem>
#include <future>
#include <memory>
#include <system_error>

#include "checksum.h"
#include "file.h"
#include "json.h"
#include "safetensors_file.h"

namespace vernier {

namespace fs = std::filesystem;
using Manifest = CheckpointManifest;

namespace {

constexpr const char* manifest_name = "manifest.json";
constexpr const char* model_name = "model.safetensors";
constexpr const char* state_name = "state.safetensors";
constexpr const char* format_name = "vernier.checkpoint";
constexpr const char* step_prefix = "step-";
constexpr const char* temporary_prefix = ".tmp-";
constexpr std::uint64_t longest_manifest = 1 << 28;
constexpr int deepest_manifest = 64;  // the configuration is a table of tables
// The last bytes of a manifest: its checksum, of all bytes before it.
constexpr std::string_view tail_begin = ",\"checksum\":\"", tail_end = "\"}\n";
constexpr std::size_t checksum_digits = 32;
constexpr std::size_t tail_size = tail_begin.size() + checksum_digits + tail_end.size();

// The manifest as text.

using Ordered = nlohmann::ordered_json;

Ordered to_json(const Manifest::File& file) {
  Ordered tensors = Ordered::object();
  for (const auto& [name, tensor] : file.tensors) {
    tensors[name] = {{"dtype", tensor.dtype}, {"shape", tensor.shape}, {"checksum", tensor.checksum}};
  }
  return {{"bytes", file.bytes}, {"header_checksum", file.header_checksum}, {"tensors", std::move(tensors)}};
}

std::string to_text(const std::string& path, const Manifest& manifest) {
  Ordered json = {{"format", format_name},
                  {"version", manifest.version},
                  {"step", manifest.step},
                  {"run", manifest.run},
                  {"versions", manifest.versions},
                  {"plugins", Ordered::array()},
                  {"configuration", Ordered::object()},
                  {"files", Ordered::object()}};
  for (const auto& plugin : manifest.plugins) {
    json["plugins"].push_back({{"id", plugin.id}, {"version", plugin.version}});
  }
  for (const auto& [name, file] : manifest.files) json["files"][name] = to_json(file);
  try {
    json["configuration"] = Ordered::parse(manifest.configuration);
    std::string text = json.dump(1);
    text.resize(text.size() - 2);  // the line with the last brace
    return text + std::string(tail_begin) + checksum_of(text) + std::string(tail_end);
  } catch (const Ordered::exception& error) {
    fail(path, std::string("what the manifest is to say is no JSON: ") + error.what());
  }
}

// A member of an object, of the type that is read.
template <class T>
T member(const std::string& path, const Json& object, const char* key) {
  const auto found = object.find(key);
  if (found == object.end()) fail(path, std::string("has no '") + key + "'");
  bool is_right = false;
  if constexpr (std::is_same_v<T, std::string>) is_right = found->is_string();
  if constexpr (std::is_same_v<T, std::uint64_t>) is_right = found->is_number_unsigned();
  if constexpr (std::is_same_v<T, std::int64_t>) {
    is_right = found->is_number_unsigned() && found->get<std::uint64_t>() <= INT64_MAX;
  }
  if (!is_right) fail(path, std::string("its '") + key + "' is not what it must be: " + found->dump().substr(0, 80));
  return found->get<T>();
}

const Json& structure(const std::string& path, const Json& object, const char* key, bool is_array = false) {
  const auto found = object.find(key);
  if (found == object.end()) fail(path, std::string("has no '") + key + "'");
  if (is_array ? !found->is_array() : !found->is_object()) {
    fail(path, std::string("its '") + key + "' is not an " + (is_array ? "array" : "object"));
  }
  return *found;
}

std::string checksum_in(const std::string& path, const Json& object, const char* key) {
  auto digits = member<std::string>(path, object, key);
  const bool is_hexadecimal = digits.find_first_not_of("0123456789abcdef") == std::string::npos;
  if (digits.size() != checksum_digits || !is_hexadecimal) fail(path, std::string("its '") + key + "' is no checksum");
  return digits;
}

Manifest::Tensor tensor_in(const std::string& path, const std::string& name, const Json& json) {
  if (!json.is_object()) fail(path, name, "its entry is not an object");
  const std::string place = path + ": tensor '" + name + "'";
  Manifest::Tensor tensor{member<std::string>(place, json, "dtype"), {}, checksum_in(place, json, "checksum")};
  for (const Json& size : structure(place, json, "shape", /*is_array=*/true)) {
    tensor.shape.push_back(member<std::int64_t>(place, {{"shape", size}}, "shape"));
  }
  return tensor;
}

Manifest::File file_in(const std::string& path, const Json& json) {
  Manifest::File file{member<std::uint64_t>(path, json, "bytes"), checksum_in(path, json, "header_checksum"), {}};
  for (const auto& [name, tensor] : structure(path, json, "tensors").items()) {
    file.tensors[name] = tensor_in(path, name, tensor);
  }
  return file;
}

// A newer version may have another way of everything but this and the checksum.
void check_version(const std::string& path, const Json& json) {
  if (!json.is_object() || json.value("format", Json()) != format_name) {
    fail(path, "is not the manifest of a checkpoint");
  }
  const auto version = member<std::int64_t>(path, json, "version");
  if (version > checkpoint_format_version) {
    throw Error(path + ": its format is version " + std::to_string(version) + ", this Vernier reads up to version " +
                    std::to_string(checkpoint_format_version) + "; read it with the version that wrote it",
                Error::Kind::configuration);
  }
  if (version != checkpoint_format_version) {
    fail(path, "says version " + std::to_string(version) + ", which had no manifest");
  }
}

void check_own_checksum(const std::string& path, std::string_view text) {
  const std::string_view tail = text.size() < tail_size ? "" : text.substr(text.size() - tail_size);
  if (!tail.starts_with(tail_begin) || !tail.ends_with(tail_end)) {
    fail(path, "is cut short or changed: it does not end in its checksum");
  }
  const std::string_view said = tail.substr(tail_begin.size(), checksum_digits);
  const std::string is = checksum_of(std::string(text.substr(0, text.size() - tail_size)));
  if (is != said) fail(path, "was changed: its checksum is " + is + ", and it says " + std::string(said));
}

// Folders.

// Others could put another file in the place of what is written there.
void refuse_a_shared_folder(const std::string& path) {
  struct stat status = {};
  if (::lstat(path.c_str(), &status) != 0) fail_with_errno(path, "cannot be looked at");
  if (S_ISLNK(status.st_mode)) fail(path, "is a symbolic link; give the folder itself");
  if (!S_ISDIR(status.st_mode)) fail(path, "is not a folder");
  const bool is_shared = (status.st_mode & (S_IWGRP | S_IWOTH)) != 0 && (status.st_mode & S_ISVTX) == 0;
  if (is_shared) fail(path, "can be written to by others; chmod go-w it, or take another folder");
}

// A folder that only its owner reads and that is gone, unless it was renamed, when the object is.
class TemporaryFolder {
 public:
  explicit TemporaryFolder(const fs::path& parent)
      : path_((parent / (temporary_prefix + std::string("XXXXXX"))).string()) {
    if (::mkdtemp(path_.data()) == nullptr) fail_with_errno(parent.string(), "no folder can be made in it");
  }
  TemporaryFolder(const TemporaryFolder&) = delete;
  TemporaryFolder& operator=(const TemporaryFolder&) = delete;
  ~TemporaryFolder() {
    std::error_code ignored;  // remove_unfinished_checkpoints() tries again
    fs::remove_all(path_, ignored);
  }
  const std::string& path() const { return path_; }
  std::string operator/(const char* name) const { return path_ + "/" + name; }

 private:
  std::string path_;
};

// The two change places at once, where the file system can; what stood there is then removed with the temporary folder.
void put_in_place(const TemporaryFolder& temporary, const std::string& path) {
  if (::rename(temporary.path().c_str(), path.c_str()) == 0) return;
  if (errno != ENOTEMPTY && errno != EEXIST) fail_with_errno(path, "cannot be put in place");
  if (::renameat2(AT_FDCWD, temporary.path().c_str(), AT_FDCWD, path.c_str(), RENAME_EXCHANGE) == 0) return;
  if (errno != EINVAL && errno != ENOSYS) fail_with_errno(path, "cannot be put in place");
  const TemporaryFolder aside(fs::path(path).parent_path());
  if (::rename(path.c_str(), aside.path().c_str()) != 0) fail_with_errno(path, "cannot be put aside");
  if (::rename(temporary.path().c_str(), path.c_str()) == 0) return;
  const int reason = errno;
  ::rename(aside.path().c_str(), path.c_str());
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

// Memory for the tensors of a file in one piece of large pages: page by page, the system takes longer to give it than
// to read the file into it.
class Memory {
 public:
  explicit Memory(const SafetensorsFile& file) {
    std::size_t size = 0;
    for (const auto& entry : file.entries()) {
      places_.push_back(size);
      size += (entry.end - entry.begin + alignment - 1) / alignment * alignment;
    }
    void* bytes = ::mmap(nullptr, std::max<std::size_t>(size, 1), PROT_READ | PROT_WRITE,
                         MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (bytes == MAP_FAILED) fail_with_errno(file.path(), "there is no memory for it");
    ::madvise(bytes, size, MADV_HUGEPAGE);  // where the system has none, small ones serve
    bytes_ = std::shared_ptr<char>(static_cast<char*>(bytes), [size](char* all) { ::munmap(all, size); });
  }
  torch::Tensor tensor(const SafetensorsFile::Entry& entry, std::size_t i) const {
    return torch::from_blob(
        bytes_.get() + places_[i], entry.shape, [keep = bytes_](void*) {}, entry.type);
  }

 private:
  static constexpr std::size_t alignment = 64;
  std::vector<std::size_t> places_;
  std::shared_ptr<char> bytes_;
};

using Make = std::function<torch::Tensor(std::size_t)>;  // the tensor to read the i-th of the file into; any thread

// Reads every tensor, several at a time, and checks it. The first in the file that is refused is told.
void read_tensors(const SafetensorsFile& file, const Manifest::File& said, const Make& make) {
  const auto& entries = file.entries();
  std::atomic<std::size_t> next = 0;
  std::vector<std::exception_ptr> trouble(entries.size());
  const auto read_some = [&] {
    Checksum checksum;
    for (std::size_t i = next++; i < entries.size(); i = next++) {
      try {
        file.read(entries[i], make(i), &checksum);
        const auto& saved = said.tensors.at(entries[i].name).checksum;
        if (const auto is = checksum.digits(); !saved.empty() && is != saved) {
          fail(file.path(), entries[i].name,
               "its bytes were changed: their checksum is " + is + ", and " + saved + " in the manifest");
        }
      } catch (...) {
        trouble[i] = std::current_exception();
      }
    }
  };
  // Not at::parallel_for: without -fopenmp it is a plain loop.
  std::vector<std::future<void>> others;
  const auto threads = std::min<std::size_t>(static_cast<std::size_t>(at::get_num_threads()), entries.size());
  for (std::size_t i = 1; i < threads; ++i) others.push_back(std::async(std::launch::async, read_some));
  read_some();
  for (auto& other : others) other.get();
  for (const auto& each : trouble) {
    if (each) std::rethrow_exception(each);
  }
}

Tensors read_all(const SafetensorsFile& file, const Manifest::File& said) {
  const auto& entries = file.entries();
  const Memory memory(file);
  std::vector<torch::Tensor> read(entries.size());
  read_tensors(file, said, [&](std::size_t i) { return read[i] = memory.tensor(entries[i], i); });
  Tensors tensors;
  for (std::size_t i = 0; i < read.size(); ++i) tensors[entries[i].name] = std::move(read[i]);
  return tensors;
}

const std::string& said_by(const SafetensorsFile& file, const std::string& key) {
  const auto found = file.metadata().find(key);
  if (found == file.metadata().end()) fail(file.path(), "was not written as a checkpoint: it has no " + key);
  return found->second;
}

// Version 1 was one file, with "model/" before the names of the model's tensors, and without checksums.
Manifest manifest_of_version_1(const SafetensorsFile& file) {
  const auto& format = said_by(file, "format");
  if (format == std::string(format_name) + " 2") fail(file.path(), "has lost the manifest.json beside it");
  if (format != std::string(format_name) + " 1") fail(file.path(), "was not written as a checkpoint");
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
  struct stat status = {};
  return ::lstat((path + "/" + name).c_str(), &status) == 0;
}

StoredCheckpoint read_version_1(const std::string& path) {
  const SafetensorsFile file(path + "/" + state_name, O_NOFOLLOW);
  StoredCheckpoint stored{manifest_of_version_1(file), {}, {}};
  State all;
  all.tensors = read_all(file, stored.manifest.files[state_name]);
  stored.model = all.part("model").tensors;
  std::erase_if(all.tensors, [](const auto& entry) { return entry.first.starts_with("model/"); });
  stored.state = std::move(all.tensors);
  return stored;
}

// A file of a checkpoint, compared with what its manifest says.
class ComparedFile {
 public:
  ComparedFile(const std::string& path, const Manifest& manifest, const char* name)
      : said_(manifest.files.at(name)), file_(path + "/" + name, O_NOFOLLOW) {
    compare(file_, said_);
  }
  Tensors read() const { return read_all(file_, said_); }
  void verify() const {
    read_tensors(file_, said_,
                 [this](std::size_t i) { return torch::empty(file_.entries()[i].shape, file_.entries()[i].type); });
  }

 private:
  const Manifest::File& said_;
  SafetensorsFile file_;
};

}  // namespace

Manifest parse_manifest(const std::string& path, const std::string& text) {
  check_own_checksum(path, text);
  const Json json = parse_json(path, "manifest", text, deepest_manifest);
  check_version(path, json);
  Manifest manifest;
  manifest.version = member<std::int64_t>(path, json, "version");
  manifest.step = member<std::int64_t>(path, json, "step");
  manifest.run = member<std::string>(path, json, "run");
  for (const auto& [name, version] : structure(path, json, "versions").items()) {
    manifest.versions[name] = member<std::string>(path, json["versions"], name.c_str());
  }
  for (const Json& plugin : structure(path, json, "plugins", /*is_array=*/true)) {
    if (!plugin.is_object()) fail(path, "one of its 'plugins' is not an object");
    manifest.plugins.push_back({member<std::string>(path, plugin, "id"), member<std::string>(path, plugin, "version")});
  }
  manifest.configuration = structure(path, json, "configuration").dump();
  const Json& files = structure(path, json, "files");
  for (const char* name : {model_name, state_name}) manifest.files[name] = file_in(path, structure(path, files, name));
  if (files.size() != manifest.files.size()) fail(path, "names files that version 2 does not have");
  return manifest;
}

Manifest read_manifest(const std::string& path) {
  if (has(path, manifest_name))
    return parse_manifest(path + "/" + manifest_name, read_text(path + "/" + manifest_name));
  return manifest_of_version_1(SafetensorsFile(path + "/" + state_name, O_NOFOLLOW));
}

StoredCheckpoint read_checkpoint(const std::string& path) {
  if (!has(path, manifest_name)) return read_version_1(path);
  StoredCheckpoint stored{read_manifest(path), {}, {}};
  const ComparedFile model(path, stored.manifest, model_name), state(path, stored.manifest, state_name);
  stored.model = model.read();
  stored.state = state.read();
  return stored;
}

StoredCheckpoint read_checkpoint_model(const std::string& path) {
  if (!has(path, manifest_name)) {
    auto stored = read_version_1(path);
    stored.state.clear();
    return stored;
  }
  StoredCheckpoint stored{read_manifest(path), {}, {}};
  stored.model = ComparedFile(path, stored.manifest, model_name).read();
  return stored;
}

Manifest verify_checkpoint(const std::string& path) {
  auto manifest = read_manifest(path);
  for (const auto& [name, file] : manifest.files) ComparedFile(path, manifest, name.c_str()).verify();
  return manifest;
}

bool is_checkpoint(const std::string& path) {
  return has(path, manifest_name) || has(path, state_name);
}

Manifest write_checkpoint(const std::string& path, Manifest about, const Tensors& model, const Tensors& state,
                          const std::function<void(std::uint64_t)>& progress) {
  const fs::path target = fs::path(path).lexically_normal();
  const std::string parent = target.has_parent_path() ? target.parent_path().string() : ".";
  refuse_a_shared_folder(parent);
  struct stat status = {};
  const bool is_there = ::lstat(path.c_str(), &status) == 0;
  if (is_there && !S_ISDIR(status.st_mode)) fail(path, "is there, and is no checkpoint");
  std::uint64_t done = 0;
  const auto tell = [&](std::uint64_t count) { progress(done += count); };
  const std::function<void(std::uint64_t)> piece = progress ? tell : std::function<void(std::uint64_t)>();
  const TemporaryFolder temporary(parent);
  const std::string format = std::string(format_name) + " " + std::to_string(checkpoint_format_version);
  about.version = checkpoint_format_version;
  about.versions["vernier"] = VERNIER_VERSION;
  about.versions["torch"] = TORCH_VERSION;
  about.files[model_name] = write_tensors(temporary / model_name, model, {{"format", "pt"}}, piece);
  about.files[state_name] = write_tensors(temporary / state_name, state, {{"format", format}}, piece);
  write_text(temporary / manifest_name, to_text(temporary / manifest_name, about));
  sync_folder(temporary.path());
  put_in_place(temporary, path);
  sync_folder(parent);
  return about;
}

std::string checkpoint_name(std::int64_t step) {
  const std::string digits = std::to_string(step);
  return step_prefix + std::string(8 - std::min<std::size_t>(digits.size(), 8), '0') + digits;
}

std::int64_t step_of_checkpoint(const std::string& path) {
  const std::string name = fs::path(path).filename().string();
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
    if (step_of_checkpoint(entry->path()) >= 0) found.push_back(entry->path().string());
  }
  if (trouble && trouble != std::errc::no_such_file_or_directory && trouble != std::errc::not_a_directory) {
    fail(folder, "cannot be read: " + trouble.message());
  }
  std::ranges::sort(found, std::ranges::greater(), step_of_checkpoint);
  return found;
}

void sync_checkpoint_folder(const std::string& folder) {
  sync_folder(folder);
}

void remove_unfinished_checkpoints(const std::string& folder) {
  std::error_code none;
  for (const auto& entry : fs::directory_iterator(folder, none)) {
    if (!entry.path().filename().string().starts_with(temporary_prefix)) continue;
    fs::remove_all(entry.path(), none);
    if (none) log(Level::warning, "checkpoint", entry.path().string() + ": cannot be removed: " + none.message());
  }
}

}  // namespace vernier
