#include "service/queue/sandbox.h"

#include <fcntl.h>
#include <linux/audit.h>
#include <linux/filter.h>
#include <linux/fs.h>
#include <linux/fsverity.h>
#include <linux/landlock.h>
#include <linux/openat2.h>
#include <linux/seccomp.h>
#include <netinet/in.h>
#include <sys/ioctl.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <filesystem>
#include <iterator>
#include <stdexcept>

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

#if defined(__x86_64__)
constexpr std::uint32_t other_abi = 0x40000000;  // x32
// Newer than the headers of Debian 12.
constexpr unsigned fchmodat2 = 452, setxattrat = 463, removexattrat = 466, file_setattr = 469;

// Calls that reach what Landlock leaves open: the mode, owner, times and attributes of files, files by handle, mounts,
// servers, memory, queues and descriptors of other processes, keys, the kernel's own tables, and io_uring, which makes
// calls past this filter.
constexpr unsigned refused_calls[] = {SYS_bpf,    SYS_keyctl, SYS_ioperm,    SYS_fsetxattr,   SYS_fremovexattr,
                                      SYS_acct,   SYS_ptrace, SYS_connect,   removexattrat,   SYS_finit_module,
                                      SYS_iopl,   SYS_fsopen, SYS_add_key,   SYS_open_tree,   SYS_settimeofday,
                                      SYS_chmod,  SYS_fspick, SYS_umount2,   SYS_mq_unlink,   SYS_mount_setattr,
                                      fchmodat2,  SYS_chroot, SYS_unshare,   SYS_move_mount,  SYS_fanotify_init,
                                      SYS_chown,  SYS_swapon, SYS_swapoff,   SYS_pivot_root,  SYS_delete_module,
                                      SYS_utime,  SYS_shmget, SYS_mq_open,   SYS_semtimedop,  SYS_setdomainname,
                                      SYS_mount,  SYS_shmctl, SYS_fchmodat,  SYS_kexec_load,  SYS_clock_settime,
                                      SYS_setns,  SYS_msgget, SYS_fchownat,  SYS_removexattr, SYS_clock_adjtime,
                                      SYS_shmat,  SYS_msgsnd, SYS_setxattr,  SYS_request_key, SYS_io_uring_setup,
                                      SYS_semop,  SYS_msgrcv, file_setattr,  SYS_pidfd_getfd, SYS_perf_event_open,
                                      SYS_fchmod, SYS_msgctl, SYS_quotactl,  SYS_quotactl_fd, SYS_kexec_file_load,
                                      SYS_fchown, SYS_semget, SYS_adjtimex,  SYS_userfaultfd, SYS_process_vm_readv,
                                      SYS_lchown, SYS_semctl, SYS_futimesat, SYS_init_module, SYS_process_vm_writev,
                                      SYS_utimes, SYS_reboot, SYS_utimensat, SYS_sethostname, SYS_open_by_handle_at,
                                      setxattrat, SYS_syslog, SYS_lsetxattr, SYS_lremovexattr};
// Requests of ioctl that change a file which is open for reading alone (flags, attributes, generation, verity), or
// that type into a terminal.
constexpr std::uint32_t refused_requests[] = {
    FS_IOC_SETFLAGS,     FS_IOC32_SETFLAGS,    FS_IOC_FSSETXATTR, FS_IOC_SETVERSION,
    FS_IOC32_SETVERSION, FS_IOC_ENABLE_VERITY, TIOCSTI,           TIOCLINUX};

// A call that passes where the low half of an argument, masked, has a value.
struct Condition {
  unsigned call, argument;
  std::uint32_t mask, value;
};
// A job may listen at a TCP port, and nothing else: it connects to nobody. A limit is that of the process itself.
constexpr Condition conditions[] = {{SYS_socket, 0, ~unsigned{AF_INET | AF_INET6}, 0},  // 0 and 8 have no streams
                                    {SYS_socket, 1, 0xf, SOCK_STREAM},
                                    {SYS_socket, 2, ~unsigned{IPPROTO_TCP}, 0},
                                    {SYS_sendto, 3, MSG_FASTOPEN, 0},
                                    {SYS_sendmsg, 2, MSG_FASTOPEN, 0},
                                    {SYS_sendmmsg, 3, MSG_FASTOPEN, 0},
                                    {SYS_prlimit64, 0, ~0U, 0}};

// Has the kernel refuse these calls with EPERM from now on. False, with errno: it cannot.
bool refuse_calls() {
  constexpr auto number = offsetof(seccomp_data, nr), abi = offsetof(seccomp_data, arch);
  constexpr std::uint32_t refusal = SECCOMP_RET_ERRNO | EPERM;
  std::vector<sock_filter> code;
  const auto load = [&](std::size_t place) {
    code.push_back(BPF_STMT(BPF_LD | BPF_W | BPF_ABS, static_cast<std::uint32_t>(place)));
  };
  // Skips `equal` or `other` steps after a comparison.
  const auto jump = [&](unsigned how, std::uint32_t value, std::uint8_t equal, std::uint8_t other) {
    code.push_back(BPF_JUMP(BPF_JMP | how | BPF_K, value, equal, other));
  };
  const auto refuse = [&] { code.push_back(BPF_STMT(BPF_RET | BPF_K, refusal)); };
  load(abi);
  jump(BPF_JEQ, AUDIT_ARCH_X86_64, 1, 0);
  refuse();
  load(number);
  jump(BPF_JGE, other_abi, 0, 1);
  refuse();
  for (const auto call : refused_calls) {
    jump(BPF_JEQ, call, 0, 1);
    refuse();
  }
  for (const auto& [call, argument, mask, value] : conditions) {
    jump(BPF_JEQ, call, 0, 5);
    load(offsetof(seccomp_data, args) + argument * sizeof(std::uint64_t));
    code.push_back(BPF_STMT(BPF_ALU | BPF_AND | BPF_K, mask));
    jump(BPF_JEQ, value, 1, 0);
    refuse();
    load(number);
  }
  jump(BPF_JEQ, SYS_ioctl, 0, static_cast<std::uint8_t>(1 + 2 * std::size(refused_requests)));
  load(offsetof(seccomp_data, args) + sizeof(std::uint64_t));
  for (const auto request : refused_requests) {
    jump(BPF_JEQ, request, 0, 1);
    refuse();
  }
  code.push_back(BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW));
  sock_fprog program{.len = static_cast<unsigned short>(code.size()), .filter = code.data()};
  return ::prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program) == 0 || errno == EINVAL;  // a kernel without seccomp
}
#else
bool refuse_calls() {
  return true;
}
#endif

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
  for (const auto& place : paths.data) allow(place, reading);
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

void Sandbox::allow(const std::string& place, unsigned long long access) const {
  open_how how{.flags = O_PATH | O_CLOEXEC, .mode = 0, .resolve = RESOLVE_NO_SYMLINKS};
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
  return ::prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0 &&
         (rules_ < 0 || ::syscall(SYS_landlock_restrict_self, rules_, 0) == 0) && refuse_calls();
}

}  // namespace serve
