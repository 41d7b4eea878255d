#include "child.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <memory>
#include <sstream>

#include "run_files.h"

namespace vernier {

namespace {

using File = std::unique_ptr<std::FILE, int (*)(std::FILE*)>;

// A file in memory: a child prints into it also where no folder may be written, as in a sandbox.
File file_in_memory() {
  const int opened = ::memfd_create("printed", MFD_CLOEXEC);
  File file(opened < 0 ? nullptr : ::fdopen(opened, "w+"), &std::fclose);
  if (!file) throw Refused(std::string("no file in memory can be made: ") + std::strerror(errno));
  return file;
}

std::string text_in(std::FILE* file) {
  std::string text;
  char part[4096];
  std::rewind(file);
  for (std::size_t count = 0; (count = std::fread(part, 1, sizeof part, file)) > 0;) text.append(part, count);
  return text;
}

// The environment of this process, with these variables in it.
std::vector<std::string> environment_with(const std::vector<std::string>& more) {
  std::vector<std::string> all = more;
  for (char** each = environ; *each != nullptr; ++each) {
    const std::string word = *each, name = word.substr(0, word.find('=') + 1);
    const bool is_replaced = std::ranges::any_of(more, [&](const auto& other) { return other.starts_with(name); });
    if (!is_replaced) all.push_back(word);
  }
  return all;
}

std::vector<char*> pointers_to(std::vector<std::string>& words) {
  std::vector<char*> pointers;
  for (auto& word : words) pointers.push_back(word.data());
  pointers.push_back(nullptr);
  return pointers;
}

[[noreturn]] void become(const ChildSettings& settings, char** words, char** environment, pid_t parent) {
  ::setpgid(0, 0);
  ::prctl(PR_SET_PDEATHSIG, SIGTERM);
  if (::getppid() != parent) ::_exit(128 + SIGTERM);  // the parent died before the call above
  if (settings.mask != nullptr) ::sigprocmask(SIG_SETMASK, settings.mask, nullptr);
  ::dup2(::open("/dev/null", O_RDONLY), STDIN_FILENO);
  if (settings.out >= 0) ::dup2(settings.out, STDOUT_FILENO);
  if (settings.err >= 0) ::dup2(settings.err, STDERR_FILENO);
  if (settings.before_program && !settings.before_program()) ::_exit(126);
  ::execve(words[0], words, environment);
  ::dprintf(STDERR_FILENO, "vernier: %s cannot be started: %s\n", words[0], std::strerror(errno));
  ::_exit(127);
}

}  // namespace

BlockedSignals::BlockedSignals(const std::vector<int>& signals) {
  std::signal(SIGCHLD, SIG_DFL);
  ::sigemptyset(&signals_);
  for (const int signal : signals) {
    struct sigaction now {};
    ::sigaction(signal, nullptr, &now);
    if (now.sa_handler != SIG_IGN) ::sigaddset(&signals_, signal);
  }
  ::sigprocmask(SIG_BLOCK, &signals_, &mask_before_);
}

BlockedSignals::~BlockedSignals() {
  ::sigprocmask(SIG_SETMASK, &mask_before_, nullptr);
}

pid_t start_child(const ChildSettings& settings) {
  auto words = settings.words, environment = environment_with(settings.environment);
  auto argv = pointers_to(words), envp = pointers_to(environment);
  const pid_t parent = ::getpid(), child = ::fork();
  if (child == 0) become(settings, argv.data(), envp.data(), parent);
  if (child > 0) ::setpgid(child, child);  // the child does it too; whichever comes first
  return child;
}

int status_of(int waited) {
  return WIFEXITED(waited) ? WEXITSTATUS(waited) : 128 + WTERMSIG(waited);
}

Children::Children(std::string program) : program_(std::move(program)), signals_({SIGINT, SIGTERM, SIGHUP, SIGCHLD}) {}

int Children::stopped_by() {
  const timespec at_once{};
  int signal = 0;
  while ((signal = ::sigtimedwait(&signals_.set(), nullptr, &at_once)) > 0) {
    if (signal != SIGCHLD && stopped_by_ == 0) stopped_by_ = signal;
  }
  return stopped_by_;
}

int Children::wait_for(pid_t child) {
  const timespec a_second{1, 0};  // a SIGCHLD that goes to a thread which does not block it is lost
  for (;;) {
    int status = 0;
    if (::waitpid(child, &status, WNOHANG) == child) return status_of(status);
    const int signal = ::sigtimedwait(&signals_.set(), nullptr, &a_second);
    if (signal <= 0 || signal == SIGCHLD) continue;
    ::kill(child, stopped_by_ == 0 ? signal : SIGKILL);
    if (stopped_by_ == 0) stopped_by_ = signal;
  }
}

int Children::call(const std::vector<std::string>& arguments, int out, int err) {
  std::vector<std::string> words = {program_};
  words.insert(words.end(), arguments.begin(), arguments.end());
  const pid_t child = start_child({.words = std::move(words), .out = out, .err = err, .mask = &signals_.mask_before()});
  if (child < 0) throw Refused(std::string("no process can be started: ") + std::strerror(errno));
  const int status = wait_for(child);
  if (status == 127) throw Refused(program_ + " cannot be started; install it again");
  return status;
}

Ended Children::run(const std::vector<std::string>& arguments) {
  const auto out = file_in_memory(), err = file_in_memory();
  const int status = call(arguments, ::fileno(out.get()), ::fileno(err.get()));
  return {status, text_in(out.get()), text_in(err.get())};
}

int Children::show(const std::vector<std::string>& arguments) {
  return call(arguments, -1, -1);
}

std::string last_line(const std::string& text) {
  std::istringstream lines(text);
  std::string last;
  for (std::string line; std::getline(lines, line);) {
    if (!line.empty()) last = line;
  }
  return last;
}

std::string program_beside_this() {
  return (std::filesystem::read_symlink("/proc/self/exe").parent_path() / "vernier").string();
}

std::string called_as() {
  const char* name = std::getenv("VERNIER_CALLED_AS");
  return name != nullptr ? name : "vernier";
}

}  // namespace vernier
