#include "service/queue/attempt_process.h"

#include <signal.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <csignal>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <iostream>

#include "common/child.h"
#include "service/queue/attempt.h"
#include "service/queue/sandbox.h"

namespace serve {

namespace fs = std::filesystem;
using Clock = std::chrono::steady_clock;

namespace {

constexpr int not_ours = 75;
constexpr std::size_t most_configuration = 16 << 20;
constexpr auto look_every = std::chrono::milliseconds(100);

void limit(__rlimit_resource resource, std::int64_t most) {
  if (most <= 0) return;
  rlimit now{};
  ::getrlimit(resource, &now);
  now.rlim_max = std::min<rlim_t>(now.rlim_max, static_cast<rlim_t>(most));
  now.rlim_cur = now.rlim_max;
  ::setrlimit(resource, &now);
}

// Runs in the child, before its program begins.
bool limit_child(const Work& work, const fs::path& folder, const Sandbox& sandbox) {
  for (const int signal : {SIGINT, SIGTERM, SIGHUP, SIGUSR1}) std::signal(signal, SIG_DFL);  // a shell may ignore some
  rlimit no_core{};
  ::setrlimit(RLIMIT_CORE, &no_core);
  limit(RLIMIT_NOFILE, work.open_files);
  limit(RLIMIT_FSIZE, work.file_size);
  limit(RLIMIT_NPROC, work.processes);
  if (::chdir(folder.c_str()) == 0 && sandbox.enter()) return true;
  std::cerr << "vernier: " << folder.string() << " cannot be entered: " << std::strerror(errno) << std::endl;
  return false;
}

// Bytes in memory of a process.
std::int64_t memory_of(pid_t process) {
  std::ifstream file("/proc/" + std::to_string(process) + "/statm");
  std::int64_t all = 0, here = 0;
  file >> all >> here;
  return here * ::sysconf(_SC_PAGESIZE);
}

std::string end_of(const fs::path& log) {
  constexpr std::int64_t most = 8192;
  std::istringstream end(read_part(log, -most, most));
  return last_line(end);
}

// Watches the training until it has ended.
class Watch {
 public:
  Watch(const Work& work, const Attempt& attempt, pid_t child, const sigset_t& signals)
      : work_(work), attempt_(attempt), child_(child), signals_(signals) {}

  End wait() {
    for (;;) {
      int status = 0;
      if (::waitpid(child_, &status, WNOHANG) == child_) {
        ::kill(-child_, SIGKILL);  // ends processes that the child has started
        return {vernier::status_of(status), reason_, ""};
      }
      look();
      const timespec time{0, std::chrono::nanoseconds(look_every).count()};
      const int signal = ::sigtimedwait(&signals_, nullptr, &time);
      if (signal > 0 && signal != SIGCHLD) end("", signal);
    }
  }

 private:
  void look() {
    const auto now = Clock::now();
    std::error_code none;
    if (ending_since_ && now - *ending_since_ > std::chrono::seconds(work_.grace)) ::kill(-child_, SIGKILL);
    if (ending_since_) return;
    if (fs::exists(attempt_.file("cancel"), none)) return end("cancelled", SIGINT);
    if (work_.time_limit > 0 && now - begun_ > std::chrono::seconds(work_.time_limit)) end("time_limit", SIGINT);
    // There is no time to save: it may take all of the memory meanwhile.
    if (work_.memory_limit > 0 && memory_of(child_) > work_.memory_limit) end("memory_limit", SIGKILL);
  }
  void end(const char* reason, int signal) {
    if (ending_since_) return;
    reason_ = reason;
    ending_since_ = Clock::now();
    ::kill(-child_, signal);
  }

  const Work& work_;
  const Attempt& attempt_;
  const pid_t child_;
  const sigset_t& signals_;
  const Clock::time_point begun_ = Clock::now();
  std::optional<Clock::time_point> ending_since_;
  std::string reason_;
};

}  // namespace

int run_attempt(const fs::path& folder, std::int64_t number, const Check& check) {
  const Attempt attempt(folder, number);
  const auto work = nlohmann::json::parse(read_whole(attempt.file("json"))).get<Work>();
  sigset_t signals, mask;
  ::sigemptyset(&signals);
  for (const int signal : {SIGINT, SIGTERM, SIGHUP, SIGUSR1, SIGCHLD}) ::sigaddset(&signals, signal);
  ::sigprocmask(SIG_BLOCK, &signals, &mask);
  if (!attempt.begin()) return not_ours;
  if (number > 1) std::cout << "vernier: attempt " << number << std::endl;
  // Links may have been changed since it was submitted.
  const auto trouble = check(read_whole(folder / work.words.at(2), most_configuration), work.data);
  if (!trouble.empty()) {
    attempt.end({2, "", trouble});
    return 1;
  }
  const Sandbox sandbox({.data = work.data, .readable = work.readable, .writable = work.writable});
  const pid_t child =
      vernier::start_child({.words = work.words, .environment = work.environment, .mask = &mask, .before_program = [&] {
                              return limit_child(work, folder, sandbox);
                            }});
  if (child < 0) {
    attempt.end({1, "", std::string("no process can be started: ") + std::strerror(errno)});
    return 1;
  }
  auto end = Watch(work, attempt, child, signals).wait();
  if (end.status != 0) end.text = end_of(folder / "log");
  attempt.end(end);
  return 0;
}

int run_confined(const fs::path& folder) {
  auto work = nlohmann::json::parse(read_whole(folder / "work.json")).get<Work>();
  const Sandbox sandbox({.data = work.data, .readable = work.readable, .writable = work.writable});
  if (!limit_child(work, folder / "work", sandbox)) return 126;
  for (auto& variable : work.environment) ::putenv(variable.data());
  std::vector<char*> words;
  for (auto& word : work.words) words.push_back(word.data());
  words.push_back(nullptr);
  ::execvp(words[0], words.data());
  std::cerr << "vernier: " << work.words[0] << " cannot be started: " << std::strerror(errno) << std::endl;
  return 127;
}

}  // namespace serve
