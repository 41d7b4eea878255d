// The processes of one training on this machine: starts them, shows what they print, and ends all after one has failed.
#pragma once

#include <signal.h>

#include <chrono>
#include <deque>
#include <filesystem>
#include <iosfwd>
#include <optional>
#include <string>
#include <vector>

#include "common/child.h"

namespace vernier {

// How a rank ended.
struct RankEnd {
  int rank = 0;
  int status = 0;                            // the exit code; 128 + n if signal n killed it
  bool was_killed = false;                   // by a signal
  std::vector<std::string> last_lines = {};  // last lines of its output; empty if this process has not seen its output
};

// False for the exit codes of a run that is done, was stopped by a signal or [run] time_limit, or diverged.
bool is_failure(const RankEnd& end);

// "rank 1 was killed by signal 9 (Killed)", "rank 0 ended with exit code 4".
std::string sentence_of(const RankEnd& end);

struct RankSettings {
  std::filesystem::path log_folder = {};        // gets rank-0.log and so on; empty: there are no such files
  std::string line_begin = {};                  // goes before each printed line
  int first_rank = 0;                           // the number of the first process: ranks count over all machines
  std::chrono::milliseconds grace{2000};        // from a failure until the other ranks get SIGTERM
  std::chrono::milliseconds kill_after{30000};  // from that until they get SIGKILL
};

// While a LocalRanks exists, SIGINT, SIGTERM, SIGHUP and SIGUSR1 do not end this process. The first of them is passed
// on to all ranks, so that they end as `vernier train` ends. A later SIGINT kills them. The ranks get SIGTERM if this
// process dies. Use it from one thread.
class LocalRanks {
 public:
  // Without a log folder, rank 0 has the standard output and error of this process. Each line of the others goes to
  // `out`, after "[rank 1] ".
  LocalRanks(std::ostream& out, RankSettings settings);
  LocalRanks(const LocalRanks&) = delete;
  LocalRanks& operator=(const LocalRanks&) = delete;

  // Starts the commands and returns when all have ended. Returns the rank that failed first; if none failed, the first
  // rank whose status is not 0; else nothing. After a failure the other ranks have time to end by themselves, since
  // they lose the connection. Then they get SIGTERM, and later SIGKILL. Throws Refused if a process cannot be started.
  std::optional<RankEnd> run(const std::vector<ChildSettings>& commands);

  int stopped_by();                           // the first signal that came; 0: none
  pid_t process_of(std::size_t place) const;  // in the last run(); place: among the commands

 private:
  struct Process {
    pid_t id = 0;
    bool has_ended = false;
    int output = -1;      // the pipe to read; -1: there is none
    std::string partial;  // the begin of a line
    std::deque<std::string> last_lines;
    std::filesystem::path log;
    std::uintmax_t log_begin = 0;  // offset at which this process's part of the log begins
  };

  // place: of a process among the commands.
  int rank_of(std::size_t place) const { return settings_.first_rank + static_cast<int>(place); }
  std::string name_of(std::size_t place) const;
  void start(ChildSettings command, std::size_t place);
  bool are_running() const;
  void show_output(int milliseconds);
  void read_pipe(std::size_t place);
  void show_line(std::size_t place, std::string line);
  void pass_signals_on();
  void collect_ends();
  void note_end(const RankEnd& end);
  void end_the_others();
  void send(int signal) const;
  void kill_all();
  std::vector<std::string> last_lines_of(std::size_t place) const;

  std::ostream& out_;
  RankSettings settings_;
  BlockedSignals signals_;
  int stopped_by_ = 0;
  bool is_killed_by_user_ = false;
  std::vector<Process> processes_;
  std::optional<RankEnd> first_;
  std::chrono::steady_clock::time_point failed_at_;
  int sent_ = 0;  // the last signal that the other ranks got because of the failure
};

}  // namespace vernier
