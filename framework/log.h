// Log lines on stderr and in the run's folder. Apart from everything that includes LibTorch: its headers bring another
// release of fmt, with which the system's spdlog does not compile.
#pragma once

#include <string>

namespace vernier {

// 0 debug, 1 info, 2 warning, 3 error: the numbers of vernier::Level.
void write_log(int level, const std::string& who, const std::string& text);  // any thread
void set_log_level(int level);              // of stderr; the file gets everything from info on
void log_to_file(const std::string& path);  // appends; throws std::exception where it cannot be opened

}  // namespace vernier
