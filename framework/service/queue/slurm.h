// Slurm in the place of this server's own processes: it decides when and where the process of an attempt begins. By its
// commands sbatch, squeue and scancel.
#pragma once

#include <filesystem>
#include <set>
#include <string>
#include <vector>

#include "service/queue/job.h"

namespace serve {

// One thread. Each function throws std::runtime_error with what Slurm says, also where it takes longer than 30 seconds.
class Slurm {
 public:
  // scratch: a file for what its commands print. options: further words for sbatch, "--partition=gpu".
  Slurm(std::filesystem::path scratch, std::vector<std::string> options)
      : scratch_(std::move(scratch)), options_(std::move(options)) {}

  // Hands over the process of the job's attempt. Returns its number there.
  std::string submit(const Job& job, const std::filesystem::path& folder, const std::string& program,
                     std::int64_t grace) const;
  // The numbers of this user's jobs that wait or run there.
  std::set<std::string> jobs() const;
  void remove(const std::string& number) const;     // one that has not begun
  void interrupt(const std::string& number) const;  // SIGINT for the process of the attempt

 private:
  std::string call(const std::vector<std::string>& words) const;
  std::filesystem::path scratch_;
  std::vector<std::string> options_;
};

}  // namespace serve
