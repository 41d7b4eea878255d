#include "child_process.h"

#include <fcntl.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <csignal>
#include <cstdio>
#include <cstring>

namespace vernier {

namespace {

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

}  // namespace vernier
