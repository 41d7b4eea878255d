// Counts what mixed precision does in a training loop: steps, overflows, scales, time. In a loop of your own:
//
//   vernier::AmpStats stats;
//   stats.set_scale(1, scaler.get_scale(), scaler.get_growth_tracker());
//   …
//   scaler.update();
//   stats.add({.seconds = seconds, .overflowed = found_inf.item<float>() != 0});
//   stats.set_scale(step + 1, scaler.get_scale(), scaler.get_growth_tracker());
//   …
//   stats.save("amp.json");
//
// In a run of the program it is Run::amp.
#pragma once

#include <vernier/abi.h>
#include <vernier/state.h>

#include <cstdint>
#include <deque>
#include <limits>
#include <optional>
#include <string>

namespace vernier {

class VERNIER_API AmpStats {
 public:
  struct VERNIER_API Step {
    double seconds = 0;       // duration; 0: not measured
    bool is_amp = true;       // computed in mixed precision
    bool overflowed = false;  // its gradients had an inf or nan
  };
  struct VERNIER_API Scale {
    std::int64_t step;  // the first step with this scale, from 1; it may not have begun yet
    double scale;
  };
  struct VERNIER_API Underflow {  // shares of gradients: the mean of all measurements, and the last one
    double mean, last;
    std::int64_t count;  // measurements in which a gradient underflowed
  };
  static constexpr std::size_t longest_history = 1000;  // older changes of the scale are dropped

  void add(const Step& step);
  void add_overflow();               // counts an overflow of an earlier step that becomes known late
  void add_seconds(double seconds);  // the duration of an earlier step, as Step::seconds
  // The scale from this step on, and the growth tracker, as the scaler has them after its update. Nothing: no scaler
  // scales the loss; or it has no tracker.
  void set_scale(std::int64_t step, std::optional<double> scale, std::optional<std::int64_t> growth_tracker = {});
  void add_underflow(const torch::Tensor& share);  // share of gradients that underflow, 0-dim; stays on its device
  void add_memory_savings(double gigabytes);       // the float32 step's peak less this one's, in 10^9 bytes

  std::int64_t total_steps() const { return total_; }
  std::int64_t amp_steps() const { return amp_; }
  std::int64_t scaler_updates() const { return updates_; }  // changes of the scale
  std::optional<double> current_scale() const { return scale_; }
  std::optional<std::int64_t> growth_tracker() const { return growth_tracker_; }  // good steps in a row, as PyTorch's
  std::int64_t overflow_count() const { return overflows_; }
  std::optional<double> avg_memory_savings() const;              // 10^9 bytes, mean over all measurements
  std::optional<double> mean_step_seconds() const;               // only steps of this process count
  std::optional<Underflow> underflow() const;                    // host sync
  const std::deque<Scale>& history() const { return history_; }  // the first scale and each change, or the newest ones

  std::string json() const;                  // one object with the names above; null: not measured
  void save(const std::string& path) const;  // throws Error where it cannot be written

  // Counts, scales and underflow. The time belongs to a process and is not part of it.
  State state_dict() const;
  void load_state_dict(const State& state);

 private:
  std::int64_t total_ = 0, amp_ = 0, updates_ = 0, overflows_ = 0, timed_ = 0, measured_ = 0, savings_ = 0;
  double seconds_ = 0, saved_gigabytes_ = 0;
  std::optional<double> scale_;
  std::optional<std::int64_t> growth_tracker_;
  torch::Tensor underflow_sum_, last_underflow_, underflow_count_;
  std::deque<Scale> history_;
};

// Returns the share of the steps in mixed precision; 0 before the first step.
inline double amp_usage_ratio(const AmpStats& stats) {
  const auto of = stats.total_steps();
  return of > 0 ? static_cast<double>(stats.amp_steps()) / static_cast<double>(of) : 0;
}

// Returns the share of the steps in mixed precision that overflowed, or of all steps where a scaler works without it.
inline double overflow_ratio(const AmpStats& stats) {
  const auto of = stats.amp_steps() > 0 ? stats.amp_steps() : stats.total_steps();
  return of > 0 ? static_cast<double>(stats.overflow_count()) / static_cast<double>(of) : 0;
}

}  // namespace vernier
