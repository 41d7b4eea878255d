#include "view.h"

#include <ATen/DeviceAccelerator.h>
#include <vernier/json_in.h>
#include <vernier/memory.h>

#include <cmath>
#include <fstream>

#include "shared/hyper_parameters.h"

namespace control {

using vernier::Json;

namespace {

// JSON has no NaN and no inf: null.
Json number(double value) {
  return std::isfinite(value) ? Json(value) : Json(nullptr);
}

// "VmRSS" of this process, in bytes; null where the system does not say.
Json process_memory(const std::string& name) {
  std::ifstream file("/proc/self/status");
  for (std::string line; std::getline(file, line);) {
    if (line.starts_with(name + ":")) return std::stoll(line.substr(name.size() + 1)) * 1024;
  }
  return nullptr;
}

}  // namespace

View::View(const vernier::Run& run)
    : about_({{"name", run.name}, {"steps", run.steps}, {"device", run.device.str()}, {"version", VERNIER_VERSION}}),
      status_file_(run.output + "/status.json"),
      device_(run.device),
      step_(run.step) {}

void View::take(const vernier::Record& record) {
  const std::lock_guard lock(mutex_);
  time_ = record.time;
  for (const auto& [metric, value] : record.entries) {
    const auto& name = metric->name;
    newest_[name] = {record.step, value, metric};
    const bool has_room = histories_.size() < most_histories || histories_.contains(name);
    if (has_room) histories_[name].add(record.step, value);
  }
  for (const auto& [name, text] : record.notices) {
    notices_.push_back({++notice_id_, record.step, name, text});
    if (notices_.size() > most_notices) notices_.pop_front();
    events_.add("notice", {{"id", notice_id_}, {"step", record.step}, {"name", name}, {"text", text}});
  }
  const bool is_step = record.kind == vernier::Record::Kind::step;
  if (record.kind == vernier::Record::Kind::end || (is_step && time_ - step_event_at_ < step_events_apart)) return;
  if (is_step) step_event_at_ = time_;
  Json data = {{"step", record.step}, {"time", record.time}};
  for (const auto& [metric, value] : record.entries) {
    if (histories_.contains(metric->name)) data[metric->name] = number(value);
  }
  events_.add(is_step ? "step" : "validation", data);
}

void View::set_state(const std::string& state, const vernier::Run& run, double factor) {
  const std::lock_guard lock(mutex_);
  step_ = run.step;
  scale_ = run.amp.current_scale();
  tracker_ = run.amp.growth_tracker();
  if (state == state_ && factor == factor_) return;
  state_ = state;
  factor_ = factor;
  events_.add("state", run_locked());
}

Json View::run_locked() const {
  Json run = about_;
  run["state"] = state_;
  run["step"] = step_;
  run["learning_rate_factor"] = factor_;
  run["time"] = time_;
  return run;
}

// status: the runner's status.json. Returns it with the numbers of this moment; null before the first step.
Json View::status_locked(Json status) const {
  if (!status.is_object()) return nullptr;
  status["step"] = step_;
  if (!status["scaler"].is_null()) {
    status["scale"] = scale_ ? number(*scale_) : Json(nullptr);
    status["growth_tracker"] = tracker_ ? Json(*tracker_) : Json(nullptr);
  }
  if (const auto now = vernier::allocated_memory(device_).now; now > 0) status["memory_allocated"] = now;
  if (device_.is_cuda())
    status["memory_reserved"] = at::accelerator::getDeviceStats(device_.index()).reserved_bytes[0].current;
  status["memory_peak"] = device_.is_cuda() ? Json(vernier::highest_memory(device_)) : process_memory("VmHWM");
  return status;
}

Json View::run() const {
  auto status = vernier::json_in<Json>(vernier::text_in(status_file_));
  const std::lock_guard lock(mutex_);
  auto run = run_locked();
  run["status"] = status_locked(std::move(status));
  return run;
}

Json View::metrics() const {
  const std::lock_guard lock(mutex_);
  Json all = Json::array();
  for (const auto& [name, newest] : newest_) {
    all.push_back(
        {{"name", name},
         {"step", newest.step},
         {"value", number(newest.value)},
         {"unit", newest.metric->unit},
         {"meaning", newest.metric->meaning.empty() ? "set by the task or a plugin" : newest.metric->meaning}});
  }
  return {{"metrics", all}};
}

Json View::history(const std::string& metric, std::int64_t limit) const {
  const std::lock_guard lock(mutex_);
  const auto found = histories_.find(metric);
  if (found == histories_.end()) return nullptr;
  Json points = Json::array();
  for (const auto& [step, min, max] : found->second.parts(static_cast<std::size_t>(limit))) {
    points.push_back({step, min, max});
  }
  return {{"metric", metric}, {"points", points}};
}

Json View::notices(std::int64_t after, std::int64_t limit) const {
  const std::lock_guard lock(mutex_);
  Json all = Json::array();
  for (const auto& [id, step, name, text] : notices_) {
    if (id <= after || std::ssize(all) >= limit) continue;
    all.push_back({{"id", id}, {"step", step}, {"name", name}, {"text", text}});
  }
  return {{"notices", all}, {"last", notice_id_}};
}

Json View::memory(torch::Device device) {
  const auto tensors = vernier::allocated_memory(device);
  return {{"process", {{"now", process_memory("VmRSS")}, {"peak", process_memory("VmHWM")}}},
          {"device", device.str()},
          {"device_total", vernier::device_memory(device)},
          {"device_free", vernier::free_memory(device)},
          {"tensors", {{"now", tensors.now}, {"peak", tensors.peak}}}};
}

}  // namespace control
