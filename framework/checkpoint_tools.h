// `vernier checkpoint`: looks at checkpoints, checks them, and moves weights in and out, without a run.
#pragma once

namespace vernier {

// argv: from the word "checkpoint" on. Returns the exit status, or throws as the other verbs do.
int run_checkpoint_tool(int argc, char** argv);

}  // namespace vernier
