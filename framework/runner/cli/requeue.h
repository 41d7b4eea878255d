// Puts the job of Slurm that this process is part of back into the queue.
#pragma once

#include <string>

namespace vernier {

struct Requeued {
  bool is_done = false;
  std::string text;  // for the log
};

// Runs `scontrol requeue` for the job in SLURM_JOB_ID, and waits for it.
Requeued requeue_in_slurm();

}  // namespace vernier
