// Shared by the tests of task/gpt: its options, a text, its log.
#pragma once

#include <vernier/plugin.h>

#include <string>

#include "loaded_task.h"

// Small, silent and without held-out windows, so that a test names what it is about.
inline vernier::Table small(const std::string& data, vernier::Table more = {}) {
  vernier::Table table = {{"data", list<std::string>({data})},
                          {"layers", value(2)},
                          {"heads", value(2)},
                          {"width", value(8)},
                          {"context", value(4)},
                          {"batch_size", value(3)},
                          {"validation", value(0)},
                          {"sample_bytes", value(0)}};
  for (auto& [key, entry] : more) table[key] = entry;
  return table;
}

struct CaughtLog {
  CaughtLog() {
    text.clear();
    vernier::set_log_sink([](vernier::Level, const std::string&, const std::string& line) { text += line + '\n'; });
  }
  ~CaughtLog() { vernier::set_log_sink(nullptr); }
  static inline std::string text;
};

inline std::string lorem(std::size_t bytes) {
  std::string text;
  while (text.size() < bytes) text += "The quick brown fox jumps over the lazy dog. ";
  return text.substr(0, bytes);
}
