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
void Plugin::remember(std::function<void(State&)> put, std::function<void(const State&)> get) {
  memory_.push_back({std::move(put), std::move(get)});
}
State Plugin::save() const {
  State state;
  for (const auto& member : memory_) member.put(state);
  return state;
}
void Plugin::load(const State& state) {
  for (const auto& member : memory_) member.get(state);
}
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
