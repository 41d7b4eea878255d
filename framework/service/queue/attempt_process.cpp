#include "service/queue/attempt_process.h"

#include <fcntl.h>
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
#include <memory>

#include "service/queue/attempt.h"
#include "tools/common/child_process.h"

namespace serve {

namespace fs = std::filesystem;
using Json = nlohmann::ordered_json;
using Clock = std::chrono::steady_clock;

namespace {

constexpr int not_ours = 75;
constexpr auto look_every = std::chrono::milliseconds(100);

Work work_of(const Json& text) {
  Work work;
  work.words = text.at("words").get<std::vector<std::string>>();
  work.threads = text.at("threads").get<std::string>();
  if (!text.at("gpus").is_null()) work.gpus = text.at("gpus").get<std::string>();
  work.time_limit = text.at("time_limit").get<std::int64_t>();
  work.memory_limit = text.at("memory_limit").get<std::int64_t>();
  work.open_files = text.at("open_files").get<std::int64_t>();
  work.file_size = text.at("file_size").get<std::int64_t>();
  work.processes = text.at("processes").get<std::int64_t>();
  work.grace = text.at("grace").get<std::int64_t>();
  return work;
}

void limit(__rlimit_resource resource, std::int64_t most) {
  if (most <= 0) return;
  rlimit now{};
  ::getrlimit(resource, &now);
  now.rlim_max = std::min<rlim_t>(now.rlim_max, static_cast<rlim_t>(most));
  now.rlim_cur = now.rlim_max;
  ::setrlimit(resource, &now);
}

// Runs in the child, before its program begins.
bool limit_child(const Work& work, const fs::path& folder) {
  for (const int signal : {SIGINT, SIGTERM, SIGHUP, SIGUSR1}) std::signal(signal, SIG_DFL);  // a shell may ignore some
  rlimit no_core{};
  ::setrlimit(RLIMIT_CORE, &no_core);
  limit(RLIMIT_NOFILE, work.open_files);
  limit(RLIMIT_FSIZE, work.file_size);
  limit(RLIMIT_NPROC, work.processes);
  if (::chdir(folder.c_str()) == 0) return true;
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

// The last line of a log that has text, without control characters.
std::string last_line(const fs::path& log) {
  std::ifstream file(log, std::ios::binary);
  file.seekg(0, std::ios::end);
  const auto size = static_cast<std::int64_t>(file.tellg());
  file.seekg(std::max<std::int64_t>(0, size - 8192));
  std::string last;
  for (std::string line; std::getline(file, line);) {
    if (line.find_first_not_of(" \t\r") != line.npos) last = line;
  }
  std::erase_if(last, [](char c) { return static_cast<unsigned char>(c) < 32 || c == 127; });
  return last.substr(0, 1000);
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
        ::kill(-child_, SIGKILL);  // what it may have started
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

Json json_of(const Work& work) {
  return {{"words", work.words},
          {"threads", work.threads},
          {"gpus", work.gpus ? Json(*work.gpus) : Json(nullptr)},
          {"time_limit", work.time_limit},
          {"memory_limit", work.memory_limit},
          {"open_files", work.open_files},
          {"file_size", work.file_size},
          {"processes", work.processes},
          {"grace", work.grace}};
}

int run_attempt(const fs::path& folder, std::int64_t number) {
  const Attempt attempt(folder, number);
  const auto work = work_of(Json::parse(read_whole(attempt.file("json"))));
  sigset_t signals, mask;
  ::sigemptyset(&signals);
  for (const int signal : {SIGINT, SIGTERM, SIGHUP, SIGUSR1, SIGCHLD}) ::sigaddset(&signals, signal);
  ::sigprocmask(SIG_BLOCK, &signals, &mask);
  if (!attempt.begin()) return not_ours;
  if (number > 1) std::cout << "vernier: attempt " << number << std::endl;
  std::vector<std::string> environment = {"OMP_NUM_THREADS=" + work.threads};
  if (work.gpus) environment.push_back("CUDA_VISIBLE_DEVICES=" + *work.gpus);
  const pid_t child =
      vernier::start_child({.words = work.words, .environment = environment, .mask = &mask, .before_program = [&] {
                              return limit_child(work, folder);
                            }});
  if (child < 0) {
    attempt.end({1, "", std::string("no process can be started: ") + std::strerror(errno)});
    return 1;
  }
  auto end = Watch(work, attempt, child, signals).wait();
  if (end.status != 0) end.text = last_line(folder / "log");
  attempt.end(end);
  return 0;
}

}  // namespace serve
