#include "service/queue/job.h"

#include <algorithm>
#include <array>
#include <chrono>
#include <cstdio>
#include <ctime>
#include <stdexcept>

namespace serve {

namespace {

constexpr std::array names = {"queued", "running", "done", "failed", "cancelled"};  // as State has them

}  // namespace

const char* name_of(State state) {
  return names[static_cast<std::size_t>(state)];
}

State state_of(const std::string& name) {
  const auto found = std::ranges::find(names, name);
  if (found == names.end()) throw std::invalid_argument(name + " is not a state of a job");
  return static_cast<State>(found - names.begin());
}

std::string time_text(std::chrono::seconds ago) {
  const auto now = std::chrono::system_clock::now() - ago;
  const auto time = std::chrono::system_clock::to_time_t(now);
  const auto whole = std::chrono::duration_cast<std::chrono::milliseconds>(now.time_since_epoch()).count();
  std::tm parts{};
  ::gmtime_r(&time, &parts);
  char day[32] = "", text[48] = "";
  std::strftime(day, sizeof day, "%Y-%m-%dT%H:%M:%S", &parts);
  std::snprintf(text, sizeof text, "%s.%03dZ", day, static_cast<int>(whole % 1000));
  return text;
}

}  // namespace serve
