#include "service/queue/slurm.h"

#include <signal.h>
#include <sys/wait.h>

#include <boost/algorithm/string/replace.hpp>
#include <chrono>
#include <fstream>
#include <sstream>
#include <stdexcept>
#include <thread>

#include "common/text/quoting.h"
#include "service/queue/attempt.h"
#include "service/queue/start_process.h"

namespace serve {

namespace fs = std::filesystem;
using Clock = std::chrono::steady_clock;

namespace {

constexpr auto patience = std::chrono::seconds(30);

}  // namespace

std::string Slurm::call(const std::vector<std::string>& words) const {
  fs::remove(scratch_);
  const auto process = start_process(words, scratch_);
  const auto begun = Clock::now();
  int status = 0;
  while (::waitpid(process, &status, WNOHANG) == 0) {
    if (Clock::now() - begun > patience) {
      ::kill(-process, SIGKILL);
      ::waitpid(process, nullptr, 0);
      throw std::runtime_error(words[0] + " does not answer; see `systemctl status slurmctld`");
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
  }
  if (WIFEXITED(status) && WEXITSTATUS(status) == 0) return read_whole(scratch_);
  std::ifstream text(scratch_);
  const auto why = last_line(text);
  throw std::runtime_error(words[0] + ": " + (why.empty() ? "it has failed" : why.substr(0, 500)));
}

std::string Slurm::submit(const Job& job, const fs::path& folder, const std::string& program,
                          std::int64_t grace) const {
  const auto number = std::to_string(job.attempt);
  const auto script = folder / (number + ".sbatch");
  write_durably(script, "#!/bin/sh\nexec " + vernier::shell_quoted(program) + " --attempt " + number + " " +
                            vernier::shell_quoted(folder) + "\n");
  const auto& request = job.request;
  std::vector<std::string> words = {"sbatch",
                                    "--parsable",
                                    "--no-requeue",
                                    "--ntasks=1",
                                    "--job-name=vernier-" + std::to_string(job.id),
                                    "--cpus-per-task=" + std::to_string(request.cores),
                                    "--nice=" + std::to_string(100 - request.priority),
                                    "--chdir=" + folder.string(),
                                    "--open-mode=append",
                                    "--output=" + boost::replace_all_copy((folder / "log").string(), "%", "%%")};
  if (request.gpus > 0) words.push_back("--gpus=" + std::to_string(request.gpus));
  // The process ends the attempt first, with a checkpoint.
  if (request.time_limit > 0) words.push_back("--time=" + std::to_string((request.time_limit + grace) / 60 + 2));
  if (request.memory_limit > 0) words.push_back("--mem=" + std::to_string((request.memory_limit >> 20) + 64) + "M");
  words.insert(words.end(), options_.begin(), options_.end());
  words.push_back(script);
  std::istringstream printed(call(words));
  auto answer = last_line(printed);
  answer = answer.substr(0, answer.find(';'));  // the name of a cluster may follow
  if (answer.empty() || answer.find_first_not_of("0123456789") != answer.npos) {
    throw std::runtime_error("sbatch has answered \"" + answer.substr(0, 200) + "\", which is not a number of a job");
  }
  return answer;
}

std::set<std::string> Slurm::jobs() const {
  std::istringstream words(call({"squeue", "--me", "--noheader", "--format=%i"}));
  std::set<std::string> all;
  for (std::string word; words >> word;) all.insert(word);
  return all;
}

void Slurm::remove(const std::string& number) const {
  call({"scancel", number});
}

void Slurm::interrupt(const std::string& number) const {
  call({"scancel", "--batch", "--signal=INT", number});
}

}  // namespace serve
