#include <vernier/plugin.h>

#include <atomic>
#include <iostream>
#include <mutex>

#include "plugin_calls.h"

namespace vernier {

namespace {
void to_stderr(Level level, const std::string& who, const std::string& text) {
  if (level < Level::warning) return;
  static std::mutex one_line_at_a_time;
  const std::lock_guard lock(one_line_at_a_time);
  std::cerr << who << ": " << text << '\n';
}
std::atomic<LogSink> sink = to_stderr, copy = nullptr;
}  // namespace

void set_log_sink(LogSink new_sink) {
  sink = new_sink != nullptr ? new_sink : to_stderr;
}

void log(Level level, const std::string& who, const std::string& text) {
  sink.load()(level, who, text);
  if (const auto also = copy.load(); also != nullptr) also(level, who, text);
}

void copy_log_to(LogSink new_copy) {
  copy = new_copy;
}

Plugin::~Plugin() = default;
void Plugin::attach(Bus&) {}
Contradiction Plugin::contradicts(const Plugin&, const Bus&) const {
  return {};
}
void Plugin::prepare(Run&) {}
void Plugin::check(const Run&) {}
State Plugin::save() const {
  return {};
}
void Plugin::load(const State&) {}
torch::Tensor Plugin::evaluate(Run&, const std::function<torch::Tensor()>& body) {
  return body();
}
std::unique_ptr<Plugin> Plugin::fill(const std::string&) {
  return nullptr;
}
std::vector<MetricInfo> Plugin::metrics() const {
  return {};
}
std::string Plugin::memory_remedy() const {
  return "";
}

}  // namespace vernier
