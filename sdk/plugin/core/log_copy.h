// A second place for the log lines.
#pragma once

#include <vernier/plugin.h>

namespace vernier {

// Receives each log line after the sink of set_log_sink(): for the log file of a run in a program that has a sink of
// its own. null: nobody. Any thread.
VERNIER_API void copy_log_to(LogSink copy);

}  // namespace vernier
