#include "service/queue/sandbox.h"

#include <fcntl.h>
#include <linux/landlock.h>
#include <linux/openat2.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <set>
#include <sstream>
#include <stdexcept>

#include "service/queue/attempt.h"
#include "service/queue/start_process.h"

namespace serve {

namespace fs = std::filesystem;

namespace {

// The rights of newer kernels, which the headers of Debian 12 do not have: docs.kernel.org/userspace-api/landlock.html
constexpr std::uint64_t refer = 1ULL << 13, truncate = 1ULL << 14, device_control = 1ULL << 15;
constexpr std::uint64_t abstract_sockets = 1, signals = 2;
struct Rules {
  std::uint64_t files, network, scopes;
};

constexpr std::uint64_t reading =
    LANDLOCK_ACCESS_FS_EXECUTE | LANDLOCK_ACCESS_FS_READ_FILE | LANDLOCK_ACCESS_FS_READ_DIR;
// Neither devices nor sockets nor pipes.
constexpr std::uint64_t writing = reading | LANDLOCK_ACCESS_FS_WRITE_FILE | LANDLOCK_ACCESS_FS_REMOVE_DIR |
                                  LANDLOCK_ACCESS_FS_REMOVE_FILE | LANDLOCK_ACCESS_FS_MAKE_DIR |
                                  LANDLOCK_ACCESS_FS_MAKE_REG | LANDLOCK_ACCESS_FS_MAKE_SYM | refer | truncate;
constexpr std::uint64_t first_version = (LANDLOCK_ACCESS_FS_MAKE_SYM << 1) - 1;
constexpr std::uint64_t of_files = LANDLOCK_ACCESS_FS_EXECUTE | LANDLOCK_ACCESS_FS_WRITE_FILE |
                                   LANDLOCK_ACCESS_FS_READ_FILE | truncate | device_control;

long version() {
  return ::syscall(SYS_landlock_create_ruleset, nullptr, 0, LANDLOCK_CREATE_RULESET_VERSION);
}

// Returns the rights that this kernel knows.
std::uint64_t known_rights() {
  const auto kernel = version();
  return first_version | (kernel >= 2 ? refer : 0) | (kernel >= 3 ? truncate : 0) | (kernel >= 5 ? device_control : 0);
}

[[noreturn]] void fail(const std::string& what) {
  throw std::runtime_error("the sandbox of a job cannot be made: " + what + ": " + std::strerror(errno));
}

}  // namespace

bool Sandbox::is_possible() {
  return version() >= 1;
}

Sandbox::Sandbox(const SandboxPaths& paths) {
  if (!is_possible()) return;
  const auto kernel = version();
  const Rules rules{.files = known_rights(), .network = 0, .scopes = abstract_sockets | signals};
  const auto size = kernel >= 6 ? sizeof rules : sizeof rules.files;
  rules_ = static_cast<int>(::syscall(SYS_landlock_create_ruleset, &rules, size, 0));
  if (rules_ < 0) fail("rules");
  for (const auto& place : paths.data) allow(place, reading, /*follows_links=*/false);
  for (const auto& place : paths.readable) allow(place, reading);
  for (const auto& place : paths.writable) allow(place, writing);
  for (const auto* device : {"/dev/null", "/dev/zero", "/dev/random", "/dev/urandom", "/dev/full"}) {
    allow(device, LANDLOCK_ACCESS_FS_READ_FILE | LANDLOCK_ACCESS_FS_WRITE_FILE);
  }
  std::error_code none;
  for (const auto& device : fs::directory_iterator("/dev", none)) {  // GPUs of NVIDIA
    if (!device.path().filename().string().starts_with("nvidia")) continue;
    allow(device.path(),
          LANDLOCK_ACCESS_FS_READ_FILE | LANDLOCK_ACCESS_FS_WRITE_FILE | device_control | LANDLOCK_ACCESS_FS_READ_DIR);
  }
}

Sandbox::~Sandbox() {
  if (rules_ >= 0) ::close(rules_);
}

void Sandbox::allow(const std::string& place, unsigned long long access, bool follows_links) const {
  open_how how{.flags = O_PATH | O_CLOEXEC, .mode = 0, .resolve = follows_links ? 0ULL : RESOLVE_NO_SYMLINKS};
  const int opened = static_cast<int>(::syscall(SYS_openat2, AT_FDCWD, place.c_str(), &how, sizeof how));
  if (opened < 0 && (errno == ENOENT || errno == EACCES || errno == ELOOP)) return;
  if (opened < 0) fail(place);
  struct stat status {};
  ::fstat(opened, &status);
  if (!S_ISDIR(status.st_mode)) access &= of_files;
  landlock_path_beneath_attr rule{.allowed_access = access & known_rights(), .parent_fd = opened};
  const bool is_added = ::syscall(SYS_landlock_add_rule, rules_, LANDLOCK_RULE_PATH_BENEATH, &rule, 0) == 0;
  const int trouble = errno;
  ::close(opened);
  errno = trouble;
  if (!is_added) fail(place);
}

bool Sandbox::enter() const {
  if (rules_ < 0) return true;
  return ::prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0 && ::syscall(SYS_landlock_restrict_self, rules_, 0) == 0;
}

// A few files of /etc alone, because others have secrets.
std::vector<std::string> places_of_system() {
  return {"/usr",
          "/bin",
          "/lib",
          "/lib32",
          "/lib64",
          "/sbin",
          "/proc",
          "/sys",
          "/etc/ld.so.cache",
          "/etc/localtime",
          "/etc/hosts",
          "/etc/host.conf",
          "/etc/gai.conf",
          "/etc/resolv.conf",
          "/etc/nsswitch.conf",
          "/etc/passwd",
          "/etc/group",
          "/etc/machine-id",
          "/etc/ssl/openssl.cnf"};
}

std::vector<std::string> places_of_program(const std::string& program, const fs::path& scratch) {
  const auto folder = fs::weakly_canonical(program).parent_path();
  // In a build, plugins and this program's other files stand beside it; installed, below lib and share.
  std::set<std::string> places = {folder.string(), (folder.parent_path() / "lib").string(),
                                  (folder.parent_path() / "share").string()};
  const char* given = std::getenv("VERNIER_PLUGIN_PATH");
  std::istringstream parts(given == nullptr ? "" : given);
  for (std::string part; std::getline(parts, part, ':');) {
    if (!part.empty()) places.insert(part);
  }
  const char *data = std::getenv("XDG_DATA_HOME"), *home = std::getenv("HOME");
  if (data != nullptr) places.insert(std::string(data) + "/vernier/plugins");
  if (data == nullptr && home != nullptr) places.insert(std::string(home) + "/.local/share/vernier/plugins");
  // The loader prints what it would load of the program that trains, and starts nothing.
  std::error_code none;
  fs::remove(scratch, none);
  const auto process = start_process({"env", "LD_TRACE_LOADED_OBJECTS=1", program + "-train"}, scratch);
  ::waitpid(process, nullptr, 0);
  std::istringstream lines(read_whole(scratch));
  fs::remove(scratch, none);
  for (std::string name, arrow, library, rest; std::getline(lines, rest);) {
    std::istringstream words(rest);
    if (!(words >> name >> arrow >> library) || arrow != "=>" || !library.starts_with('/')) continue;
    const auto place = fs::path(library).lexically_normal().parent_path();
    places.insert(place.string());
    // Libraries of CUDA that are opened later stand beside LibTorch's.
    if (name.starts_with("libtorch")) places.insert((place.parent_path().parent_path() / "nvidia").string());
  }
  return {places.begin(), places.end()};
}

}  // namespace serve
