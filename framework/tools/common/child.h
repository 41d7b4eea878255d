// Runs a program as a child, one at a time, and ends it by a signal that this process gets.
#pragma once

#include <string>
#include <vector>

#include "child_process.h"

namespace vernier {

struct Ended {
  int status = 0;  // the exit status, or 128 + n where signal n ended it
  std::string out, err;
};

// While it exists, SIGINT, SIGTERM and SIGHUP end no process: run() passes them on to its child, waits for it, and
// remembers the first. So a run in work ends as `vernier train` ends. A second signal kills the child.
class Children {
 public:
  explicit Children(std::string program);
  Children(const Children&) = delete;
  Children& operator=(const Children&) = delete;

  Ended run(const std::vector<std::string>& arguments);  // throws Refused where it cannot be started
  int stopped_by();                                      // the signal that came; 0: none

 private:
  int wait_for(pid_t child);
  std::string program_;
  BlockedSignals signals_;
  int stopped_by_ = 0;
};

std::string last_line(const std::string& text);  // the last that is not empty; "" where there is none

// vernier, beside this program.
std::string program_beside_this();

}  // namespace vernier
