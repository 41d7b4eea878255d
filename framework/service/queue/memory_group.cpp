#include "queue/memory_group.h"

#include <fcntl.h>
#include <linux/magic.h>
#include <sys/stat.h>
#include <sys/vfs.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <fstream>
#include <sstream>
#include <stdexcept>

namespace serve {

namespace fs = std::filesystem;

namespace {

// Its files take a value in one call.
bool put(const fs::path& file, const std::string& value) {
  const int opened = ::open(file.c_str(), O_WRONLY | O_CLOEXEC);
  if (opened < 0) return false;
  const bool is_written = ::write(opened, value.data(), value.size()) == static_cast<ssize_t>(value.size());
  const int trouble = errno;
  ::close(opened);
  errno = trouble;
  return is_written;
}

}  // namespace

MemoryGroup::MemoryGroup(const fs::path& parent, const std::string& name, std::int64_t limit) : folder_(parent / name) {
  const auto fail = [&](const fs::path& file) {
    const std::string why = std::strerror(errno);
    ::rmdir(folder_.c_str());
    throw std::runtime_error(file.string() + ": memory cannot be limited: " + why);
  };
  if (::mkdir(folder_.c_str(), 0755) != 0) fail(folder_);
  if (!put(folder_ / "memory.max", std::to_string(limit))) fail(folder_ / "memory.max");
  (void)put(folder_ / "memory.swap.max", "0");  // only where there is swap
  if (!put(folder_ / "memory.oom.group", "1")) fail(folder_ / "memory.oom.group");
}

// A group goes when its last process has been waited for.
MemoryGroup::~MemoryGroup() {
  (void)put(folder_ / "cgroup.kill", "1");
  for (int i = 0; i < 200 && ::rmdir(folder_.c_str()) != 0 && errno == EBUSY; ++i) ::usleep(10'000);
}

bool MemoryGroup::join() const {
  return put(folder_ / "cgroup.procs", "0");
}

bool MemoryGroup::was_exceeded() const {
  std::ifstream events(folder_ / "memory.events");
  std::string name;
  for (std::int64_t count = 0; events >> name >> count;) {
    if (name == "oom_kill" && count > 0) return true;
  }
  return false;
}

std::string trouble_with_groups(const fs::path& parent) {
  struct statfs system {};
  if (::statfs(parent.c_str(), &system) != 0) return std::strerror(errno);
  if (system.f_type != CGROUP2_SUPER_MAGIC) return "is not a folder of control groups (cgroup v2)";
  std::ifstream file(parent / "cgroup.controllers");
  std::string controllers{std::istreambuf_iterator<char>(file), {}};
  std::istringstream words(controllers);
  bool has_memory = false;
  for (std::string word; words >> word;) has_memory = has_memory || word == "memory";
  if (!has_memory) return "has no controller for memory; delegate it, in systemd by Delegate=memory";
  if (!put(parent / "cgroup.subtree_control", "+memory")) {
    return std::string("the controller for memory cannot be given to groups below it: ") + std::strerror(errno) +
           "; no process may be in the folder itself";
  }
  try {
    const MemoryGroup probe(parent, "probe-" + std::to_string(::getpid()), 1 << 30);
    const pid_t child = ::fork();
    if (child == 0) ::_exit(probe.join() ? 0 : 1);
    int status = 0;
    ::waitpid(child, &status, 0);
    if (child > 0 && WIFEXITED(status) && WEXITSTATUS(status) == 0) return "";
    return "processes of this server may not be moved into groups below it; start it in a group of the same tree";
  } catch (const std::runtime_error& error) {
    return error.what();
  }
}

void remove_empty_groups(const fs::path& parent) {
  std::error_code none;
  for (const auto& entry : fs::directory_iterator(parent, none)) {
    if (entry.path().filename().string().starts_with("vernier-")) ::rmdir(entry.path().c_str());
  }
}

}  // namespace serve
