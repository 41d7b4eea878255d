// Log lines on stderr and in the run's folder. This file includes nothing of LibTorch: its headers contain another
// release of fmt, with which the system's spdlog does not compile.
#pragma once

#include <string>

namespace vernier {

// level: 0 debug, 1 info, 2 warning, 3 error, as in vernier::Level.
// Any thread. Writes to stderr and to the log file.
void write_log(int level, const std::string& who, const std::string& text);
void set_log_level(int level);  // the lowest level for stderr; the file gets all levels from info on

// The log file, one at a time. Any thread may write to it; nothing is written while none is open.
void open_log_file(const std::string& path);  // appends; throws std::exception if it cannot be opened
void write_log_file(int level, const std::string& who, const std::string& text);
void close_log_file();

}  // namespace vernier
