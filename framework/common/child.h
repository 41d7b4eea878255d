// Starts programs as children of this process, and holds back the signals that end it meanwhile.
#pragma once

#include <signal.h>
#include <sys/types.h>

#include <functional>
#include <string>
#include <vector>

namespace vernier {

// Blocks the signals that end this process while it exists, so that a child can be ended first. A signal that this
// process ignores, as under nohup, stays ignored. Resets SIGCHLD to its default, so that children can be waited for.
class BlockedSignals {
 public:
  explicit BlockedSignals(const std::vector<int>& signals);
  BlockedSignals(const BlockedSignals&) = delete;
  BlockedSignals& operator=(const BlockedSignals&) = delete;
  ~BlockedSignals();
  const sigset_t& set() const { return signals_; }
  const sigset_t& mask_before() const { return mask_before_; }

 private:
  sigset_t signals_, mask_before_;
};

struct ChildSettings {
  std::vector<std::string> words;          // the path of a program, and its arguments
  std::vector<std::string> environment{};  // "NAME=VALUE", beside this process's
  int out = -1, err = -1;                  // open files for standard output and error; -1: those of this process
  const sigset_t* mask = nullptr;          // the child's signal mask; nullptr: this process's
  std::function<bool()> before_program{};  // runs in the child; false, after a message, ends it with status 126
};

// Starts a program in a process group of its own, so that a Ctrl-C reaches it once, through this process. Its standard
// input is empty. It gets SIGTERM when this process ends. If the program cannot be started, it prints a message to its
// standard error and ends with status 127. Returns the process, or -1 with errno.
pid_t start_child(const ChildSettings& settings);

// Returns the exit status of a process that ended as waitpid() says, or 128 + n if signal n ended it.
int status_of(int waited);

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

  // Both wait for the program's end, and throw Refused where it cannot be started. show() lets it print, and returns
  // its exit status.
  Ended run(const std::vector<std::string>& arguments);
  int show(const std::vector<std::string>& arguments);
  int stopped_by();  // the signal that came; 0: none

 private:
  int call(const std::vector<std::string>& arguments, int out, int err);
  int wait_for(pid_t child);
  std::string program_;
  BlockedSignals signals_;
  int stopped_by_ = 0;
};

std::string last_line(const std::string& text);  // the last that is not empty; "" if there is none

// vernier, beside this program.
std::string program_beside_this();

// How this program was called, for lines to copy: the wrapper at the root of the source tree says its own name.
std::string called_as();

}  // namespace vernier
