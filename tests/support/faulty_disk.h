// The system calls that change a disk, counted, written down, and made to fail at will: the N-th for N = 1, 2, 3, …
// Stands in front of the C library's for the whole program, so it is included by one source of it only.
#pragma once

#include <dlfcn.h>
#include <unistd.h>

#include <cerrno>
#include <condition_variable>
#include <cstdlib>
#include <filesystem>
#include <mutex>
#include <string>
#include <string_view>
#include <vector>

namespace faulty_disk {

inline std::string folder;  // calls that concern other files are let through; "": nothing is watched
inline int fail_at = 0;     // 0: never
inline int reason = 0;
inline std::vector<std::string> calls;  // "fsync state.safetensors"

class Watch {
 public:
  explicit Watch(const std::filesystem::path& below, int the_nth = 0, int with = ENOSPC) {
    calls.clear();
    fail_at = the_nth;
    reason = with;
    folder = below.string();
  }
  Watch(const Watch&) = delete;
  Watch& operator=(const Watch&) = delete;
  ~Watch() { folder.clear(); }
};

inline std::mutex mutex;
inline std::condition_variable changed;
inline std::string held;  // fsync of what is below waits; "": of nothing

// A disk that takes its time: until let_go().
class Hold {
 public:
  explicit Hold(const std::filesystem::path& below) { set(below.string()); }
  Hold(const Hold&) = delete;
  Hold& operator=(const Hold&) = delete;
  ~Hold() { let_go(); }
  void let_go() { set(""); }

 private:
  static void set(const std::string& below) {
    const std::lock_guard lock(mutex);
    held = below;
    changed.notify_all();
  }
};

inline void wait_while_held(int descriptor) {
  std::unique_lock lock(mutex);
  if (held.empty()) return;
  const auto path = std::filesystem::read_symlink("/proc/self/fd/" + std::to_string(descriptor)).string();
  changed.wait(lock, [&] { return held.empty() || !path.starts_with(held); });
}

// Allocates nothing while nothing is watched: some of the calls below are noexcept.
inline bool fails(const char* call, const char* name) {
  if (folder.empty() || !std::string_view(name).starts_with(folder)) return false;
  calls.push_back(std::string(call) + " " + std::filesystem::path(name).filename().string());
  if (static_cast<int>(calls.size()) != fail_at) return false;
  errno = reason;
  return true;
}

inline bool fails(const char* call, int descriptor) {
  if (folder.empty()) return false;
  std::error_code none;
  return fails(call, std::filesystem::read_symlink("/proc/self/fd/" + std::to_string(descriptor), none).c_str());
}

template <class Function>
Function* real(const char* name) {
  return reinterpret_cast<Function*>(::dlsym(RTLD_NEXT, name));
}

}  // namespace faulty_disk

#define FAULTY_DISK_API extern "C" __attribute__((visibility("default")))

FAULTY_DISK_API ssize_t write(int descriptor, const void* bytes, size_t count) {
  static auto* const next = faulty_disk::real<decltype(write)>("write");
  if (faulty_disk::fails("write", descriptor)) return -1;
  return next(descriptor, bytes, count);
}

FAULTY_DISK_API int fsync(int descriptor) {
  static auto* const next = faulty_disk::real<decltype(fsync)>("fsync");
  faulty_disk::wait_while_held(descriptor);
  if (faulty_disk::fails("fsync", descriptor)) return -1;
  return next(descriptor);
}

FAULTY_DISK_API int rename(const char* from, const char* to) noexcept {
  static auto* const next = faulty_disk::real<decltype(rename)>("rename");
  if (faulty_disk::fails("rename", to)) return -1;
  return next(from, to);
}

FAULTY_DISK_API int mkdir(const char* path, mode_t mode) noexcept {
  static auto* const next = faulty_disk::real<decltype(mkdir)>("mkdir");
  if (faulty_disk::fails("mkdir", path)) return -1;
  return next(path, mode);
}

FAULTY_DISK_API char* mkdtemp(char* pattern) noexcept {
  static auto* const next = faulty_disk::real<decltype(mkdtemp)>("mkdtemp");
  if (faulty_disk::fails("mkdtemp", pattern)) return nullptr;
  return next(pattern);
}

FAULTY_DISK_API int close(int descriptor) {
  static auto* const next = faulty_disk::real<decltype(close)>("close");
  if (!faulty_disk::fails("close", descriptor)) return next(descriptor);
  next(descriptor);
  errno = faulty_disk::reason;
  return -1;
}
