#include "requeue.h"

#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <cstring>

namespace vernier {

Requeued requeue_in_slurm() {
  const char* job = std::getenv("SLURM_JOB_ID");
  if (job == nullptr) return {false, "this is not a job of Slurm: there is no SLURM_JOB_ID"};
  const char* const words[] = {"scontrol", "requeue", job, nullptr};
  pid_t child = 0;
  int status = ::posix_spawnp(&child, words[0], nullptr, nullptr, const_cast<char* const*>(words), environ);
  if (status != 0) return {false, std::string("scontrol cannot be run: ") + std::strerror(status)};
  status = -1;  // failed, if the child cannot be waited for
  while (::waitpid(child, &status, 0) < 0 && errno == EINTR) {
  }
  if (status == 0) return {true, std::string("job ") + job + " is back in the queue"};
  return {false, "`scontrol requeue " + std::string(job) + "` failed; put the job into the queue yourself"};
}

}  // namespace vernier
