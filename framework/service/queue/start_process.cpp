#include "service/queue/start_process.h"

#include <fcntl.h>
#include <signal.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <system_error>
#include <thread>

#include "common/child.h"
#include "service/queue/attempt.h"

namespace serve {

// posix_spawn takes the same time for a server of any size, and may be called while other threads run.
pid_t start_process(const std::vector<std::string>& words, const std::filesystem::path& log) {
  posix_spawn_file_actions_t files;
  ::posix_spawn_file_actions_init(&files);
  ::posix_spawn_file_actions_addopen(&files, STDIN_FILENO, "/dev/null", O_RDONLY, 0);
  ::posix_spawn_file_actions_addopen(&files, STDOUT_FILENO, log.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_NOFOLLOW,
                                     0600);
  ::posix_spawn_file_actions_adddup2(&files, STDOUT_FILENO, STDERR_FILENO);
  ::posix_spawn_file_actions_addclosefrom_np(&files, 3);
  posix_spawnattr_t attributes;
  ::posix_spawnattr_init(&attributes);
  sigset_t all, none;
  ::sigfillset(&all);
  ::sigemptyset(&none);
  ::posix_spawnattr_setsigdefault(&attributes, &all);
  ::posix_spawnattr_setsigmask(&attributes, &none);
  ::posix_spawnattr_setflags(&attributes, POSIX_SPAWN_SETSID | POSIX_SPAWN_SETSIGDEF | POSIX_SPAWN_SETSIGMASK);
  std::vector<char*> arguments;
  for (const auto& word : words) arguments.push_back(const_cast<char*>(word.c_str()));
  arguments.push_back(nullptr);
  pid_t process = 0;
  const int trouble = ::posix_spawnp(&process, arguments[0], &files, &attributes, arguments.data(), environ);
  ::posix_spawn_file_actions_destroy(&files);
  ::posix_spawnattr_destroy(&attributes);
  if (trouble == 0) return process;
  throw std::system_error(trouble, std::generic_category(), words[0] + " cannot be started");
}

Finished finished_process(const std::vector<std::string>& words, const std::filesystem::path& log,
                          std::chrono::seconds patience) {
  const auto process = start_process(words, log);
  const auto end = std::chrono::steady_clock::now() + patience;
  int status = 0;
  while (::waitpid(process, &status, WNOHANG) == 0) {
    if (std::chrono::steady_clock::now() > end) {
      ::kill(-process, SIGKILL);
      ::waitpid(process, &status, 0);
      return {124, read_whole(log)};
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(50));
  }
  ::kill(-process, SIGKILL);  // its own children
  return {vernier::status_of(status), read_whole(log)};
}

}  // namespace serve
