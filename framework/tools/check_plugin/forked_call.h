// A function in a child process: a crash, exit() or a change of the process is seen there alone.
#pragma once

#include <sys/types.h>

#include <cstdio>
#include <functional>
#include <stdexcept>
#include <string>

namespace vernier {

// Thrown by a law that does not apply: why.
struct LawSkipped : std::runtime_error {
  using std::runtime_error::runtime_error;
};

// Thrown where the plugin refuses, by a configuration error, the run in which a law is tried.
struct LawDeclined : LawSkipped {
  using LawSkipped::LawSkipped;
};

struct Result {
  enum class Kind { ok, failed, skipped, declined } kind;
  std::string text;  // the function's result, its error, or how the process ended
};

// Main thread only.
class ForkedCall {
 public:
  // Begins. The child ends with this process, and prints nothing. most_seconds: it is killed after them; 0: never.
  explicit ForkedCall(const std::function<std::string()>& body, unsigned most_seconds = 0);
  ForkedCall(const ForkedCall&) = delete;
  ForkedCall& operator=(const ForkedCall&) = delete;
  ~ForkedCall();
  Result wait();  // once

 private:
  std::string how_it_ended(int status) const;
  unsigned most_seconds_;
  std::FILE *result_, *said_;
  pid_t child_;
  bool is_killed_ = false;
};

}  // namespace vernier
