// The queue of a server: starts jobs where cores and GPUs are free, looks after those that run, and finds them again
// after a restart.
#pragma once

#include <condition_variable>
#include <filesystem>
#include <functional>
#include <map>
#include <mutex>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "service/http/http_service.h"
#include "service/queue/attempt.h"
#include "service/queue/attempt_process.h"
#include "service/queue/journal.h"
#include "service/queue/slurm.h"
#include "service/queue/start_process.h"

namespace serve {

void make_folder(const std::filesystem::path& folder);  // 0700; throws std::system_error

struct QueueSettings {
  std::filesystem::path folder;   // has the journal, and a folder for each job; absolute
  std::string program;            // vernier
  std::string attempt_program;    // this one
  std::vector<std::string> more;  // words for `vernier train`: the folders of plugins
  std::int64_t cores = 1, gpus = 0;
  std::int64_t keep_days = 30;      // after its end a job is removed; 0: never
  Work limits;                      // limits and paths of every job; a job may lower its time and memory
  bool uses_slurm = false;          // Slurm starts the processes; cores and gpus are the most that a job may request
  std::vector<std::string> sbatch;  // further words for it
};

// Calls a program as a job is called, in a job's sandbox. It is called in the folder `work` of this folder, and can
// write there alone, so it cannot change its orders. data: a further folder that it may read, without its links.
Finished call_confined(const QueueSettings& settings, std::vector<std::string> words,
                       const std::filesystem::path& folder, std::chrono::seconds patience,
                       const std::string& data = "");

class Queue {
 public:
  explicit Queue(QueueSettings settings);

  // Called after each change of a job, and with is_there = false when it is removed, on the thread that made it; it
  // must not ask the queue. Set it before the first job.
  void on_change(std::function<void(const Job& job, bool is_there)> changed) { changed_ = std::move(changed); }

  // Called before a job is removed because it is old.
  void on_retirement(std::function<void(const Job& job)> retired) { retired_ = std::move(retired); }

  // Any thread.
  Job submit(const JobRequest& request, bool& is_new);
  Job find(std::int64_t id) const;  // throws HttpRefused with 404; those below, also with 409
  std::vector<Job> list(const Journal::Page& page) const;
  std::vector<Job> running() const;  // the oldest first
  Job cancel(std::int64_t id);
  Job retry(std::int64_t id);
  void remove(std::int64_t id);
  struct Counts {
    std::int64_t queued, running, cores_in_use, gpus_in_use;
  };
  Counts counts() const;
  std::filesystem::path folder_of(std::int64_t id) const;
  // The folder of the run that the newest attempt has made; "" if there is none yet.
  std::filesystem::path run_of(std::int64_t id) const;
  const QueueSettings& settings() const { return settings_; }

  // One thread: looks after jobs once, and waits at most so long for the next time.
  void look();
  void wait(std::chrono::milliseconds time);

 private:
  Job known(std::int64_t id) const;  // find(), with the lock
  void write(const Job& job);
  void erase(const Job& job);
  void look_after(Job job);
  void ask_to_end(const Job& job) const;
  void finish(Job& job, const End& end);
  void lose(Job& job, bool is_loss);
  void requeue(Job& job);
  void close(Job& job, State state, const std::string& error);
  void start_queued();
  bool start(Job& job);
  void complain(const std::string& trouble);
  void write_files(const Job& job, const std::vector<int>& gpus_of_job) const;
  void set_strangers_aside();
  void set_aside(std::int64_t id) const;
  void remove_old();
  // With Slurm: queue_slurm.cpp.
  void look_at_slurm();
  void look_after_waiting(Job& job, bool is_there);
  void look_after_handed(Job& job, bool is_there);
  void cancel_in_slurm();
  bool hand_over(const Job& job);
  bool cancel_at_slurm(Job& job);

  QueueSettings settings_;
  mutable std::mutex mutex_;
  std::condition_variable wake_;
  std::function<void(const Job&, bool)> changed_ = [](const Job&, bool) {};
  std::function<void(const Job&)> retired_ = [](const Job&) {};
  bool is_changed_ = false;
  mutable Journal journal_;
  std::map<std::int64_t, pid_t> processes_;  // processes of running attempts that this server has started
  std::set<pid_t> children_;  // processes that were not waited for yet; some outlive their attempts by a moment
  std::chrono::steady_clock::time_point removed_, start_after_, complained_;
  std::string complaint_;
  std::optional<Slurm> slurm_;
  std::chrono::steady_clock::time_point asked_slurm_, submit_after_;
  std::vector<std::pair<void (Slurm::*)(const std::string&) const, std::string>> slurm_calls_;  // with numbers there
  std::map<std::int64_t, std::chrono::steady_clock::time_point> interrupted_;  // jobs that were asked to end, and when
  std::map<std::int64_t, int> missing_;  // jobs: how often squeue lacked them in a row
};

}  // namespace serve
