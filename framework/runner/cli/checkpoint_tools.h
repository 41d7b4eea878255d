// `vernier checkpoint`: lists, verifies and shows checkpoints, and moves weights in and out, without a run.
#pragma once

namespace vernier {

// argv begins with the word "checkpoint". Returns the exit status, or throws as the other verbs do. Main thread.
int run_checkpoint_tool(int argc, char** argv);

}  // namespace vernier
