#include "disk.h"

#include <dlfcn.h>
#include <fcntl.h>
#include <fnmatch.h>
#include <signal.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <unistd.h>

#include <cerrno>
#include <climits>
#include <cstdarg>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <mutex>
#include <optional>
#include <sstream>
#include <string_view>
#include <utility>

namespace disk {
namespace {

struct Watched {
  std::recursive_mutex mutex;
  std::string folder, struck;
  Fault fault = Fault::none;
  int at = 0, count = 0;
  bool records = false, cannot_exchange = false;
  std::vector<Call> trace;
};

// Never destroyed: files are closed after main.
Watched& watched() {
  static auto* const all = new Watched;
  return *all;
}

using Lock = std::lock_guard<std::recursive_mutex>;

bool is_below(const std::string& path) {
  const auto& folder = watched().folder;
  if (folder.find('*') != std::string::npos) return ::fnmatch(folder.c_str(), path.c_str(), 0) == 0;
  return !folder.empty() && path.starts_with(folder) && (path.size() == folder.size() || path[folder.size()] == '/');
}

std::string path_of(int file) {
  char target[PATH_MAX];
  const auto length = ::readlink(("/proc/self/fd/" + std::to_string(file)).c_str(), target, sizeof target);
  return length < 0 ? "" : std::string(target, static_cast<std::size_t>(length));
}

std::string path_of(int folder, const char* name) {
  if (name == nullptr) return "";
  if (name[0] == '/') return name;
  if (folder != AT_FDCWD) return path_of(folder) + "/" + name;
  char here[PATH_MAX];
  return ::getcwd(here, sizeof here) == nullptr ? "" : std::string(here) + "/" + name;
}

// The faults that a call may suffer.
struct Traits {
  const char* name;
  bool takes_room = false, can_be_interrupted = false;
};

enum class Fate { done, failed, shortened };

// Counts the call, and says what becomes of it; errno is set where it fails.
Fate fate_of(const Traits& call, const std::string& path) {
  auto& all = watched();
  all.count += 1;
  const bool is_it = all.count == all.at, is_after = all.at > 0 && all.count >= all.at;
  if (is_it) all.struck = std::string(call.name) + " " + path.substr(path.rfind('/') + 1);
  const auto fail = [](int reason) {
    errno = reason;
    return Fate::failed;
  };
  switch (all.fault) {
    case Fault::none:
      return Fate::done;
    case Fault::kill:
      if (is_it) ::kill(::getpid(), SIGKILL);
      return Fate::done;
    case Fault::torn:
    case Fault::shortened:
      return is_it ? Fate::shortened : Fate::done;
    case Fault::eio:
      return is_it ? fail(EIO) : Fate::done;
    case Fault::enospc:
      return is_it ? fail(ENOSPC) : Fate::done;
    case Fault::broken:
      return is_after ? fail(EIO) : Fate::done;
    case Fault::full:
      return is_after && call.takes_room ? fail(ENOSPC) : Fate::done;
    case Fault::interrupted:
      return is_it && call.can_be_interrupted ? fail(EINTR) : Fate::done;
  }
  return Fate::done;
}

void end_where_torn() {
  const auto& all = watched();
  if (all.fault == Fault::torn && all.count == all.at) ::kill(::getpid(), SIGKILL);
}

void keep(Call call) {
  if (watched().records) watched().trace.push_back(std::move(call));
}

template <class Function>
Function* real(const char* name) {
  return reinterpret_cast<Function*>(::dlsym(RTLD_NEXT, name));
}

// A call of one kind: does it unless its fate says otherwise, and keeps it where it succeeded.
template <class Do>
auto one_call(const Traits& traits, const std::string& path, Call kept, const Do& body) -> decltype(body()) {
  const Lock lock(watched().mutex);
  if (!is_below(path)) return body();
  if (fate_of(traits, path) == Fate::failed) return decltype(body())(-1);
  end_where_torn();
  const auto result = body();
  if (result == decltype(body())(-1)) return result;
  if (kept.kind == Call::Kind::open) kept.file = static_cast<int>(result);
  kept.name = path;
  if (kept.kind != Call::Kind::mark) keep(std::move(kept));
  return result;
}

template <class Do>
int opened(const std::string& path, int flags, const Do& body) {
  Call call;
  call.kind = Call::Kind::open;
  struct stat status = {};
  call.is_new = (flags & O_CREAT) != 0 && ::lstat(path.c_str(), &status) != 0;
  call.is_emptied = (flags & O_TRUNC) != 0;
  // A folder on a disk is opened without waiting; a file may be on one that waits (NFS, FUSE).
  return one_call({"open", call.is_new, (flags & O_DIRECTORY) == 0}, path, call, body);
}

// body(count): writes that many bytes.
template <class Do>
ssize_t written(const char* name, int file, const void* bytes, std::size_t count, std::optional<off_t> offset,
                const Do& body) {
  const Lock lock(watched().mutex);
  const std::string path = path_of(file);
  if (!is_below(path)) return body(count);
  const Fate fate = fate_of({name, true, true}, path);
  if (fate == Fate::failed) return -1;
  const off_t at = offset ? *offset : ::lseek(file, 0, SEEK_CUR);
  const ssize_t result = body(fate == Fate::shortened && count > 1 ? count / 2 : count);
  end_where_torn();
  if (result > 0 && watched().records) {
    Call call;
    call.kind = Call::Kind::write;
    call.file = file;
    call.name = path;
    call.offset = static_cast<std::uint64_t>(at);
    call.bytes.assign(static_cast<const char*>(bytes), static_cast<std::size_t>(result));
    keep(std::move(call));
  }
  return result;
}

int synced(const char* name, int file) {
  const Lock lock(watched().mutex);
  const std::string path = path_of(file);
  Call call;
  call.kind = Call::Kind::sync;
  call.file = file;
  return one_call({name, false, true}, path, call, [&] {
    static auto* const next = real<decltype(::fsync)>("fsync");
    return is_below(path) ? 0 : next(file);
  });
}

Call a(Call::Kind kind, std::string other = "") {
  Call call;
  call.kind = kind;
  call.other = std::move(other);
  return call;
}

// For a program that was started with this library before it.
__attribute__((constructor)) void watch_by_environment() {
  const char* order = std::getenv("VERNIER_DISK");
  if (order == nullptr) return;
  std::istringstream words(order);
  std::string fault, folder;
  int at = 0;
  words >> fault >> at >> std::ws;
  std::getline(words, folder);
  for (std::size_t i = 0; i < std::size(fault_names); ++i) {
    if (fault == fault_names[i]) return watch(folder, static_cast<Fault>(i), at);
  }
  std::fprintf(stderr, "VERNIER_DISK: there is no fault '%s'\n", fault.c_str());
  std::_Exit(125);
}

}  // namespace

void watch(const std::string& folder, Fault fault, int at) {
  auto& all = watched();
  const Lock lock(all.mutex);
  all.folder = folder;
  while (all.folder.ends_with('/')) all.folder.pop_back();
  all.fault = fault;
  all.at = at;
  all.count = 0;
  all.struck.clear();
}

void cannot_exchange(bool cannot) {
  const Lock lock(watched().mutex);
  watched().cannot_exchange = cannot;
}

int calls() {
  const Lock lock(watched().mutex);
  return watched().count;
}

std::string struck() {
  const Lock lock(watched().mutex);
  return watched().struck;
}

void record() {
  const Lock lock(watched().mutex);
  watched().records = true;
  watched().trace.clear();
}

void mark(const std::string& text) {
  const Lock lock(watched().mutex);
  Call call;
  call.other = text;
  keep(std::move(call));
}

std::vector<Call> stop() {
  const Lock lock(watched().mutex);
  watched().records = false;
  return std::exchange(watched().trace, {});
}

}  // namespace disk

using disk::Call;
using Kind = disk::Call::Kind;

#define DISK_API extern "C" __attribute__((visibility("default")))
// The next definition of the function around it.
#define DISK_NEXT(name) static auto* const next = disk::real<decltype(::name)>(#name)

#define DISK_OPEN_MODE                             \
  mode_t mode = 0;                                 \
  if ((flags & (O_CREAT | O_TMPFILE)) != 0) {      \
    va_list rest;                                  \
    va_start(rest, flags);                         \
    mode = static_cast<mode_t>(va_arg(rest, int)); \
    va_end(rest);                                  \
  }

DISK_API int open(const char* path, int flags, ...) {
  DISK_NEXT(open);
  DISK_OPEN_MODE
  return disk::opened(disk::path_of(AT_FDCWD, path), flags, [&] { return next(path, flags, mode); });
}
DISK_API int open64(const char* path, int flags, ...) {
  DISK_NEXT(open64);
  DISK_OPEN_MODE
  return disk::opened(disk::path_of(AT_FDCWD, path), flags, [&] { return next(path, flags, mode); });
}
DISK_API int openat(int folder, const char* path, int flags, ...) {
  DISK_NEXT(openat);
  DISK_OPEN_MODE
  return disk::opened(disk::path_of(folder, path), flags, [&] { return next(folder, path, flags, mode); });
}
DISK_API int openat64(int folder, const char* path, int flags, ...) {
  DISK_NEXT(openat64);
  DISK_OPEN_MODE
  return disk::opened(disk::path_of(folder, path), flags, [&] { return next(folder, path, flags, mode); });
}

// Streams of C++ open with these, and write with write and writev.
namespace {
template <class Next>
FILE* opened_stream(Next* next, const char* path, const char* mode) {
  const bool writes = std::string_view(mode).find_first_of("wa") != std::string_view::npos;
  const int flags = (writes ? O_CREAT : 0) | (mode[0] == 'w' ? O_TRUNC : 0);
  FILE* stream = nullptr;
  disk::opened(disk::path_of(AT_FDCWD, path), flags, [&] {
    stream = next(path, mode);
    return stream == nullptr ? -1 : ::fileno(stream);
  });
  return stream;
}
}  // namespace
DISK_API FILE* fopen(const char* path, const char* mode) {
  DISK_NEXT(fopen);
  return opened_stream(next, path, mode);
}
DISK_API FILE* fopen64(const char* path, const char* mode) {
  DISK_NEXT(fopen64);
  return opened_stream(next, path, mode);
}

DISK_API ssize_t write(int file, const void* bytes, size_t count) {
  DISK_NEXT(write);
  return disk::written("write", file, bytes, count, {}, [&](size_t some) { return next(file, bytes, some); });
}
DISK_API ssize_t pwrite(int file, const void* bytes, size_t count, off_t at) {
  DISK_NEXT(pwrite);
  return disk::written("pwrite", file, bytes, count, at, [&](size_t some) { return next(file, bytes, some, at); });
}
DISK_API ssize_t pwrite64(int file, const void* bytes, size_t count, off64_t at) {
  DISK_NEXT(pwrite64);
  return disk::written("pwrite", file, bytes, count, at, [&](size_t some) { return next(file, bytes, some, at); });
}
// As one write of all that it is given.
DISK_API ssize_t writev(int file, const iovec* parts, int count) {
  std::string bytes;
  for (int i = 0; i < count; ++i) bytes.append(static_cast<const char*>(parts[i].iov_base), parts[i].iov_len);
  return write(file, bytes.data(), bytes.size());
}

DISK_API int ftruncate(int file, off_t size) noexcept {
  DISK_NEXT(ftruncate);
  Call call = disk::a(Kind::truncate);
  call.file = file;
  call.offset = static_cast<std::uint64_t>(size);
  return disk::one_call({"ftruncate", true, true}, disk::path_of(file), call, [&] { return next(file, size); });
}
DISK_API int posix_fallocate(int file, off_t offset, off_t length) {
  DISK_NEXT(posix_fallocate);
  const int result =
      disk::one_call({"fallocate", true, true}, disk::path_of(file), {}, [&] { return next(file, offset, length); });
  return result == -1 ? errno : result;
}
DISK_API int fsync(int file) {
  return disk::synced("fsync", file);
}
DISK_API int fdatasync(int file) {
  return disk::synced("fdatasync", file);
}

DISK_API int close(int file) {
  DISK_NEXT(close);
  Call call = disk::a(Kind::close);
  call.file = file;
  bool done = false;
  const int result = disk::one_call({"close", false, true}, disk::path_of(file), call, [&] {
    done = true;
    return next(file);
  });
  if (done) return result;
  const int reason = errno;
  next(file);  // one that fails closes all the same
  errno = reason;
  return -1;
}

DISK_API int mkdir(const char* path, mode_t mode) noexcept {
  DISK_NEXT(mkdir);
  return disk::one_call({"mkdir", true}, disk::path_of(AT_FDCWD, path), disk::a(Kind::make_folder),
                        [&] { return next(path, mode); });
}
DISK_API int mkdirat(int folder, const char* path, mode_t mode) noexcept {
  DISK_NEXT(mkdirat);
  return disk::one_call({"mkdir", true}, disk::path_of(folder, path), disk::a(Kind::make_folder),
                        [&] { return next(folder, path, mode); });
}
// Its name is known when it is made.
DISK_API char* mkdtemp(char* pattern) noexcept {
  for (int i = 0; i < 10000; ++i) {
    std::string path = pattern;
    static unsigned number = static_cast<unsigned>(::getpid());
    std::snprintf(&path[path.size() - 6], 7, "%06u", ++number % 1000000);
    if (mkdir(path.c_str(), 0700) == 0) {
      std::strcpy(pattern, path.c_str());
      return pattern;
    }
    if (errno != EEXIST) return nullptr;
  }
  return nullptr;
}

DISK_API int unlink(const char* path) noexcept {
  DISK_NEXT(unlink);
  return disk::one_call({"unlink"}, disk::path_of(AT_FDCWD, path), disk::a(Kind::remove), [&] { return next(path); });
}
DISK_API int rmdir(const char* path) noexcept {
  DISK_NEXT(rmdir);
  return disk::one_call({"rmdir"}, disk::path_of(AT_FDCWD, path), disk::a(Kind::remove), [&] { return next(path); });
}
DISK_API int remove(const char* path) noexcept {
  DISK_NEXT(remove);
  return disk::one_call({"remove"}, disk::path_of(AT_FDCWD, path), disk::a(Kind::remove), [&] { return next(path); });
}
DISK_API int unlinkat(int folder, const char* path, int flags) noexcept {
  DISK_NEXT(unlinkat);
  return disk::one_call({"unlink"}, disk::path_of(folder, path), disk::a(Kind::remove),
                        [&] { return next(folder, path, flags); });
}

DISK_API int rename(const char* from, const char* to) noexcept {
  DISK_NEXT(rename);
  return disk::one_call({"rename"}, disk::path_of(AT_FDCWD, from), disk::a(Kind::rename, disk::path_of(AT_FDCWD, to)),
                        [&] { return next(from, to); });
}
DISK_API int renameat(int from_folder, const char* from, int to_folder, const char* to) noexcept {
  DISK_NEXT(renameat);
  return disk::one_call({"rename"}, disk::path_of(from_folder, from),
                        disk::a(Kind::rename, disk::path_of(to_folder, to)),
                        [&] { return next(from_folder, from, to_folder, to); });
}
DISK_API int renameat2(int from_folder, const char* from, int to_folder, const char* to, unsigned flags) noexcept {
  DISK_NEXT(renameat2);
  const auto kind = (flags & RENAME_EXCHANGE) != 0 ? Kind::exchange : Kind::rename;
  return disk::one_call({"rename"}, disk::path_of(from_folder, from), disk::a(kind, disk::path_of(to_folder, to)), [&] {
    const bool is_refused = kind == Kind::exchange && disk::watched().cannot_exchange;
    if (is_refused) errno = EINVAL;
    return is_refused ? -1 : next(from_folder, from, to_folder, to, flags);
  });
}
DISK_API int symlink(const char* target, const char* path) noexcept {
  DISK_NEXT(symlink);
  return disk::one_call({"symlink", true}, disk::path_of(AT_FDCWD, path), disk::a(Kind::link, target),
                        [&] { return next(target, path); });
}
DISK_API int symlinkat(const char* target, int folder, const char* path) noexcept {
  DISK_NEXT(symlinkat);
  return disk::one_call({"symlink", true}, disk::path_of(folder, path), disk::a(Kind::link, target),
                        [&] { return next(target, folder, path); });
}
DISK_API int chmod(const char* path, mode_t mode) noexcept {
  DISK_NEXT(chmod);
  return disk::one_call({"chmod"}, disk::path_of(AT_FDCWD, path), {}, [&] { return next(path, mode); });
}
DISK_API int fchmod(int file, mode_t mode) noexcept {
  DISK_NEXT(fchmod);
  return disk::one_call({"chmod"}, disk::path_of(file), {}, [&] { return next(file, mode); });
}
DISK_API int flock(int file, int operation) noexcept {
  DISK_NEXT(flock);
  return disk::one_call({"flock", false, true}, disk::path_of(file), {}, [&] { return next(file, operation); });
}
