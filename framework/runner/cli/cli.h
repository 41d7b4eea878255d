// The command line of `vernier`.
#pragma once

namespace vernier {

// Returns the exit status: 0 done, 2 wrong configuration or usage, 3 plugin refused, 4 training failed, 5 trained to
// the end and diverged, 128 + n stopped by signal n after a checkpoint, 124 by [run] time_limit.
int run_command_line(int argc, char** argv);

}  // namespace vernier
