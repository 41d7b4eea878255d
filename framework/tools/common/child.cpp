#include "child.h"

#include <fcntl.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <memory>

#include "run_files.h"

namespace vernier {

namespace {

using File = std::unique_ptr<std::FILE, int (*)(std::FILE*)>;

File temporary_file() {
  File file(std::tmpfile(), &std::fclose);
  if (!file)
    throw Refused(std::string("no temporary file can be made: ") + std::strerror(errno) + "; make room in /tmp");
  ::fcntl(::fileno(file.get()), F_SETFD, FD_CLOEXEC);
  return file;
}

std::string text_in(std::FILE* file) {
  std::string text;
  char part[4096];
  std::rewind(file);
  for (std::size_t count = 0; (count = std::fread(part, 1, sizeof part, file)) > 0;) text.append(part, count);
  return text;
}

// The child: in a process group of its own, so that a Ctrl-C reaches it once, by its parent. It ends with its parent.
[[noreturn]] void become(const std::string& program, const std::vector<std::string>& arguments, std::FILE* out,
                         std::FILE* err, const sigset_t& mask) {
  ::setpgid(0, 0);
  ::prctl(PR_SET_PDEATHSIG, SIGTERM);
  ::sigprocmask(SIG_SETMASK, &mask, nullptr);
  const int none = ::open("/dev/null", O_RDONLY);
  ::dup2(none, STDIN_FILENO);
  ::dup2(::fileno(out), STDOUT_FILENO);
  ::dup2(::fileno(err), STDERR_FILENO);
  std::vector<char*> words = {const_cast<char*>(program.c_str())};
  for (const auto& argument : arguments) words.push_back(const_cast<char*>(argument.c_str()));
  words.push_back(nullptr);
  ::execv(program.c_str(), words.data());
  ::_exit(127);
}

}  // namespace

Children::Children(std::string program) : program_(std::move(program)) {
  std::signal(SIGCHLD, SIG_DFL);
  ::sigemptyset(&signals_);
  for (const int signal : {SIGINT, SIGTERM, SIGHUP, SIGCHLD}) {
    struct sigaction now {};
    ::sigaction(signal, nullptr, &now);
    if (now.sa_handler != SIG_IGN) ::sigaddset(&signals_, signal);  // nohup ignores SIGHUP
  }
  ::sigprocmask(SIG_BLOCK, &signals_, &mask_before_);
}

Children::~Children() {
  ::sigprocmask(SIG_SETMASK, &mask_before_, nullptr);
}

int Children::stopped_by() {
  const timespec at_once{};
  int signal = 0;
  while ((signal = ::sigtimedwait(&signals_, nullptr, &at_once)) > 0) {
    if (signal != SIGCHLD && stopped_by_ == 0) stopped_by_ = signal;
  }
  return stopped_by_;
}

int Children::wait_for(pid_t child) {
  for (;;) {
    int status = 0;
    if (::waitpid(child, &status, WNOHANG) == child) {
      return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
    }
    const int signal = ::sigwaitinfo(&signals_, nullptr);
    if (signal <= 0 || signal == SIGCHLD) continue;
    ::kill(child, stopped_by_ == 0 ? signal : SIGKILL);
    if (stopped_by_ == 0) stopped_by_ = signal;
  }
}

Ended Children::run(const std::vector<std::string>& arguments) {
  const auto out = temporary_file(), err = temporary_file();
  const pid_t child = ::fork();
  if (child < 0) throw Refused(std::string("no process can be started: ") + std::strerror(errno));
  if (child == 0) become(program_, arguments, out.get(), err.get(), mask_before_);
  Ended ended;
  ended.status = wait_for(child);
  if (ended.status == 127) throw Refused(program_ + " cannot be started; install it again");
  ended.out = text_in(out.get());
  ended.err = text_in(err.get());
  return ended;
}

std::string program_beside_this() {
  return (std::filesystem::read_symlink("/proc/self/exe").parent_path() / "vernier").string();
}

}  // namespace vernier
