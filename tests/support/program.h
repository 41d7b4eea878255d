// The built `vernier`, run as a process of its own.
#pragma once

#include <doctest/doctest.h>
#include <fcntl.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <filesystem>
#include <string>
#include <utility>
#include <vector>

#include "patience.h"
#include "temporary_folder.h"

class Program {
 public:
  // Starts it in `folder`. before: what the child does before it becomes the program.
  Program(std::vector<std::string> arguments, const std::filesystem::path& folder, void (*before)() = nullptr) {
    const std::string binary = VERNIER_BINARY_DIR "/vernier";
    arguments.insert(arguments.begin(), binary);
    std::vector<char*> argv;
    for (auto& argument : arguments) argv.push_back(argument.data());
    argv.push_back(nullptr);
    const std::string out = output_ / "out", err = output_ / "err";
    pid_ = ::fork();
    REQUIRE(pid_ >= 0);
    if (pid_ == 0) {
      const int files[] = {::open("/dev/null", O_RDONLY), ::open(out.c_str(), O_WRONLY | O_CREAT, 0600),
                           ::open(err.c_str(), O_WRONLY | O_CREAT, 0600)};
      for (int i = 0; i < 3; ++i) ::dup2(files[i], i);
      if (before != nullptr) before();
      if (::chdir(folder.c_str()) == 0) ::execv(argv[0], argv.data());
      ::_exit(127);
    }
  }
  Program(const Program&) = delete;
  Program& operator=(const Program&) = delete;
  ~Program() {
    if (pid_ <= 0) return;
    ::kill(pid_, SIGKILL);
    wait();
  }

  // The exit status, or -n where signal n ended it.
  int wait() {
    if (pid_ > 0) {
      int status = 0;
      ::waitpid(std::exchange(pid_, 0), &status, 0);
      status_ = WIFEXITED(status) ? WEXITSTATUS(status) : -WTERMSIG(status);
    }
    return status_;
  }
  void send(int signal) const { ::kill(pid_, signal); }
  pid_t pid() const { return pid_; }
  std::string out() const { return read_text(output_ / "out"); }
  std::string err() const { return read_text(output_ / "err"); }

  // Waits until the condition holds. Returns false if the program ends first, or patience does.
  template <class Condition>
  bool wait_until(const Condition& condition) const {
    const auto has_ended = [this] {
      siginfo_t info{};
      return ::waitid(P_PID, static_cast<id_t>(pid_), &info, WEXITED | WNOHANG | WNOWAIT) == 0 && info.si_pid != 0;
    };
    patience::wait_until([&] { return condition() || has_ended(); }, std::chrono::milliseconds(2));
    return condition();
  }
  bool wait_for(const std::filesystem::path& file) const {
    return wait_until([&] { return std::filesystem::exists(file); });
  }

 private:
  TemporaryFolder output_;
  pid_t pid_ = 0;
  int status_ = 0;
};
