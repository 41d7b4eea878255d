// Starts a process that has nothing of this one: a session of its own, no open files but its log, default signals.
#pragma once

#include <sys/types.h>

#include <chrono>
#include <filesystem>
#include <string>
#include <vector>

namespace serve {

// words: a program, by its path or to be found in PATH, and its arguments. What it prints is appended to the log.
// Throws std::runtime_error.
pid_t start_process(const std::vector<std::string>& words, const std::filesystem::path& log);

// Starts a program and waits for its end. One that takes too long is killed, with status 124. The status is 128 + n
// where signal n ended it.
struct Finished {
  int status = 0;
  std::string printed;
};
Finished finished_process(const std::vector<std::string>& words, const std::filesystem::path& log,
                          std::chrono::seconds patience);

}  // namespace serve
