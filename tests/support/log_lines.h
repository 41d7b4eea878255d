// Objects that send the log elsewhere while they live, one at a time.
#pragma once

#include <vernier/plugin.h>

#include <algorithm>
#include <string>
#include <vector>

// Nowhere.
struct NoLog {
  NoLog() {
    vernier::set_log_sink([](vernier::Level, const std::string&, const std::string&) {});
  }
  NoLog(const NoLog&) = delete;
  NoLog& operator=(const NoLog&) = delete;
  ~NoLog() { vernier::set_log_sink(nullptr); }
};

// Into lines "who: text".
class LogLines {
 public:
  LogLines() {
    lines().clear();
    vernier::set_log_sink(
        [](vernier::Level, const std::string& who, const std::string& text) { lines().push_back(who + ": " + text); });
  }
  LogLines(const LogLines&) = delete;
  LogLines& operator=(const LogLines&) = delete;
  ~LogLines() { vernier::set_log_sink(nullptr); }

  static std::vector<std::string>& lines() {
    static std::vector<std::string> all;
    return all;
  }
  // How many lines contain it.
  static std::ptrdiff_t count(const std::string& part) {
    return std::ranges::count_if(lines(), [&](const auto& line) { return line.find(part) != std::string::npos; });
  }
};
