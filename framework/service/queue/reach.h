// The places that all jobs may read. They are found once, when the server starts.
#pragma once

#include "service/queue/queue.h"

namespace serve {

// The system's libraries, its devices, and /proc and /sys.
std::vector<std::string> places_of_system();

// Sets what every job may read beside its data and its own folder: what the system, the program, its libraries and its
// plugins need. Throws Refused if a job could read the server's folder, with its tokens, its journal and other jobs.
void set_reach(QueueSettings& settings);

}  // namespace serve
