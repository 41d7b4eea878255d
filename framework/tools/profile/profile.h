// `vernier profile`: a few steps of a run under LibTorch's profiler.
#pragma once

#include <atomic>
#include <cstdint>
#include <string>

#include "wiring/host.h"

namespace vernier {

// Trains the configuration's first steps with callback/profiler, without validations, checkpoints and monitors. Prints
// the table of `steps` of them, and writes the trace to the file. Leaves nothing else behind.
int profile(Table config, std::int64_t steps, const std::string& trace, const std::string& name, const Host& host,
            const std::atomic<int>& stop);

}  // namespace vernier
