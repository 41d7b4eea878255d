// When a run ends: after its last planned step, or early.
#pragma once

#include <atomic>
#include <chrono>
#include <string>
#include <utility>

#include "ranks.h"
#include "requests.h"

namespace vernier {

// Main thread only.
class Ending {
 public:
  // stop: a signal's number, or stopped_by_program, ends the run after the current step. It must outlive this.
  Ending(const std::atomic<int>& stop, const Ranks& ranks, const Requests& asked)
      : stop_(stop), ranks_(ranks), asked_(asked) {}
  // From the construction on; then the step in work is the last, as after a signal. 0: none.
  void limit_time(std::chrono::seconds limit) { limit_ = limit; }
  void diverge(std::string what) { diverged_ = std::move(what); }  // this is not finite

  const std::string& diverged() const { return diverged_; }  // "": nothing has
  const std::atomic<int>& flag() const { return stop_; }
  // The signal, or stopped_by_program, or 0. On several ranks: that of any of them.
  int signal() const { return ranks_.are_several() ? ranks_.stop().load() : stop_.load(); }
  bool is_out_of_time() const {  // on this rank
    return limit_.count() > 0 && std::chrono::steady_clock::now() - begin_ >= limit_;
  }
  // Returns whether the run ends here, for another reason than the time.
  bool is_over(const Run& run) const {
    return run.step >= run.steps || !asked_.finished().empty() || !diverged_.empty() || signal() != 0;
  }
  // Returns whether another step follows. There is always one, because a job that is queued again must get on.
  bool goes_on(const Run& run, std::int64_t steps_of_process) const {
    if (is_over(run)) return false;
    return steps_of_process == 0 || !(ranks_.are_several() ? ranks_.is_out_of_time() : is_out_of_time());
  }

 private:
  const std::atomic<int>& stop_;
  const Ranks& ranks_;
  const Requests& asked_;
  std::string diverged_;
  std::chrono::steady_clock::time_point begin_ = std::chrono::steady_clock::now();
  std::chrono::seconds limit_{0};
};

}  // namespace vernier
