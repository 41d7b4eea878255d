// Requests of plugins to the trainer, kept until the step is over. RequestHandler carries them out.
#pragma once

#include <vernier/between_steps.h>
#include <vernier/plugin.h>

#include <functional>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace vernier {

// Main thread only.
class Requests {
 public:
  struct Swap {
    Table roles;
    std::string requester;  // the last one
  };
  struct Rewind {
    Plugin* requester;
    std::int64_t back, drop;
    std::string also;
  };
  struct Failure {
    const Plugin* requester;
    std::string why;
  };
  using Look = std::function<bool(BetweenSteps&)>;

  // The last request of this rank since the ranks agreed: "finish by callback/x".
  void note(std::string request) { noted_ = std::move(request); }
  void end(bool is_over = true) { is_over_ = is_over; }  // from now on nobody carries them out
  bool is_over() const { return is_over_; }
  std::string take_noted() { return std::exchange(noted_, ""); }

  void swap(const Table& roles, const std::string& requester);  // adds to what was asked before
  bool wants_swap() const { return !pending_.swap.roles.empty(); }
  Swap take_swap() { return std::exchange(pending_.swap, {}); }
  void rewind(Rewind rewind) { pending_.rewind = std::move(rewind); }
  bool wants_rewind() const { return pending_.rewind.has_value(); }
  Rewind take_rewind() { return *std::exchange(pending_, {}).rewind; }  // drops all other requests, but to finish
  void fail(Failure failure) { pending_.failure = std::move(failure); }
  void cancel_failure_if_swapped() {
    if (wants_swap()) pending_.failure.reset();
  }
  std::optional<Failure> take_failure();  // a run that fails is not finished
  void look(const Plugin& requester, Look look) { looks_.emplace_back(&requester, std::move(look)); }
  const auto& looks() const { return looks_; }  // Control::between_steps

  void finish(std::string by) { finished_ = std::move(by); }
  const std::string& finished() const { return finished_; }  // the plugin that ends the run early, and why; "": none
  void drop() {                                              // all of a step that is undone
    pending_ = {};
    finished_.clear();
  }

  void save(State& state, const Run& run) const;
  void load(const State& state, const Run& run);  // a run that was finished goes on if it has more steps now

 private:
  struct Pending {
    Swap swap;
    std::optional<Rewind> rewind;
    std::optional<Failure> failure;
  };
  bool is_over_ = false;
  std::string noted_, finished_;
  Pending pending_;
  std::vector<std::pair<const Plugin*, Look>> looks_;
};

}  // namespace vernier
