#include "step_clock.h"

#include <vernier/metrics.h>

namespace vernier {

namespace {

constexpr std::array<const char*, 7> names = {"trainer",       "data_wait", "forward", "backward",
                                              "communication", "update",    "plugins"};
constexpr std::array<const char*, 7> metric_names = {
    "trainer_time", "data_wait", "forward_time", "backward_time", "communication_time", "update_time", "plugins_time"};

}  // namespace

// Ranges nest, so no part is named within a listener that has the step computed again: it has a range around it.
void StepClock::name(Part part) {
  if (listening_now() != nullptr) return;
  range_.reset();
  if (!are_listeners_named()) return;
  range_.emplace(at::RecordScope::USER_SCOPE);
  if (range_->isActive()) range_->before(std::string("step: ") + names[index(part)]);
}

bool StepClock::is_shown(std::size_t part, bool is_cpu) const {
  if (part == index(Part::data_wait)) return true;
  if (part == index(Part::communication) && (totals_[part] + times_[part]).count() == 0) return false;
  return is_cpu;
}

void StepClock::show(Metrics& metrics, bool is_cpu) {
  to(Part::plugins);
  Clock::duration step{};
  for (std::size_t i = 0; i < parts; ++i) {
    if (is_shown(i, is_cpu)) metrics.set_time(metric_names[i], seconds(times_[i]));
    step += times_[i];
    totals_[i] += std::exchange(times_[i], {});
  }
  if (is_cpu) metrics.set_time("step_time", seconds(step));
  if (checkpoint_to_show_ > 0) metrics.set_time("checkpoint_time", std::exchange(checkpoint_to_show_, 0));
}

std::map<std::string, double> StepClock::totals(bool is_cpu) const {
  std::map<std::string, double> all = {{"validation", validation_}, {"checkpoint", checkpoint_}};
  for (std::size_t i = 0; i < parts; ++i) {
    if (is_shown(i, is_cpu)) all[names[i]] = seconds(totals_[i] + times_[i]);
  }
  return all;
}

}  // namespace vernier
