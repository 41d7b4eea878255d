#include "service/queue/job.h"

#include <algorithm>
#include <array>
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

}  // namespace serve
