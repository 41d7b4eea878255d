// The moments of a run, and their listeners.
#pragma once

#include <vernier/run.h>

#include <array>
#include <functional>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

namespace vernier {

// RunBegin
//   StepBegin
//     BatchReady                      for each micro-batch: it is on the device
//     LossReady                       for each micro-batch: forward is done, backward is not
//     BackwardDone                    for each micro-batch: its gradients are added to those on Parameter::model
//   GradientsReady                    unscaled, of the whole batch: clip, measure, veto
//   UpdateDone                        the weights have changed, or the update was skipped
//   StepEnd                           the step is counted: run.step includes it
//   Validated                         after a validation: its metrics are there; not if nothing is held out
//   EpochEnd                          after the last batch of the task's data
// RunEnd                              after the last checkpoint; RunFailed instead where an error ends the run
enum class Event {
  RunBegin,
  StepBegin,
  BatchReady,
  LossReady,
  BackwardDone,
  GradientsReady,
  UpdateDone,
  StepEnd,
  Validated,
  EpochEnd,
  RunEnd,
  RunFailed
};
inline constexpr int event_count = 12;
VERNIER_API const char* name_of(Event event);

class Plugin;

// Calls listeners in this order: roles, callbacks, monitors, each in the order of the TOML. Main thread only.
class VERNIER_API Bus {
 public:
  // Called in Plugin::attach. A monitor's listener must take `const Run&`. An exception in a listener ends the run with
  // plugin, event and step named; one in a monitor's, or at RunFailed, is reported and detaches the plugin.
  template <class Listener>
  void on(Event event, Listener listener) {
    add(event, std::move(listener), std::is_invocable_v<Listener&, const Run&>);
  }

  bool listens(const Plugin& plugin, Event event) const;

 private:
  friend struct HostApi;
  struct Listener {
    std::function<void(Run&)> call;
    Plugin* plugin;
    bool monitor;
    std::size_t place;  // in attached_
  };
  void let_listen(Plugin& plugin, bool monitor, std::size_t place);
  void add(Event event, std::function<void(Run&)> call, bool only_looks);
  void tell(Event event, Run& run);
  void detach(Plugin& plugin);

  std::array<std::vector<Listener>, event_count> listeners_;
  std::vector<const Plugin*> attached_;  // in the order in which they are called
  Plugin* attaching_ = nullptr;
  bool attaching_monitor_ = false;
  std::size_t attaching_at_ = 0;
  bool is_muted_ = false;
  std::vector<Notice> detached_;  // emitted with the next event
};

// While named, each call of a listener is a range for LibTorch's profiler: "callback/clip_norm at GradientsReady". For
// a plugin that runs the profiler. Main thread only.
VERNIER_API void name_listeners(bool named);

}  // namespace vernier
