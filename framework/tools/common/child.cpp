#include "child.h"

#include <fcntl.h>
#include <sys/wait.h>

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <memory>
#include <sstream>

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

}  // namespace

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
  for (;;) {
    int status = 0;
    if (::waitpid(child, &status, WNOHANG) == child) return status_of(status);
    const int signal = ::sigwaitinfo(&signals_.set(), nullptr);
    if (signal <= 0 || signal == SIGCHLD) continue;
    ::kill(child, stopped_by_ == 0 ? signal : SIGKILL);
    if (stopped_by_ == 0) stopped_by_ = signal;
  }
}

Ended Children::run(const std::vector<std::string>& arguments) {
  const auto out = temporary_file(), err = temporary_file();
  std::vector<std::string> words = {program_};
  words.insert(words.end(), arguments.begin(), arguments.end());
  const pid_t child = start_child({.words = std::move(words),
                                   .out = ::fileno(out.get()),
                                   .err = ::fileno(err.get()),
                                   .mask = &signals_.mask_before()});
  if (child < 0) throw Refused(std::string("no process can be started: ") + std::strerror(errno));
  Ended ended;
  ended.status = wait_for(child);
  if (ended.status == 127) throw Refused(program_ + " cannot be started; install it again");
  ended.out = text_in(out.get());
  ended.err = text_in(err.get());
  return ended;
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

}  // namespace vernier
