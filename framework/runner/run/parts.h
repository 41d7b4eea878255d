// The objects that the parts of a training loop (step, validation, saving, requests) share.
#pragma once

#include <atomic>
#include <chrono>
#include <functional>
#include <optional>
#include <string>

#include "calls.h"
#include "requests.h"
#include "run/capture/device_graph.h"
#include "run/process/plugin_times.h"
#include "run/process/ranks.h"
#include "run/process/step_clock.h"
#include "run/process/update_log.h"
#include "run/state/outcome.h"
#include "run/state/snapshot_ring.h"
#include "run/state/transaction.h"
#include "wiring/swap.h"
#include "wiring/wiring.h"

namespace vernier {

// The trainer's own memory between two steps. It is part of each snapshot: see the table in saving.cpp.
struct Progress {
  torch::Tensor best_loss;                       // the lowest of any step
  std::optional<std::int64_t> samples_of_batch;  // in a whole batch of the task, once that is known
  std::optional<std::int64_t> rewound_from;      // the step that the run went back from, until the next step reports it
  std::optional<std::int64_t> finished_of;       // the steps that were planned for a run that a plugin has finished
  bool adapts = false;                           // the accumulation's updates depend on what was trained: see Plan
  bool validation_due = false;                   // after the last step, and not done
};

// How run.steps was planned, in a run of so many epochs whose accumulation gathers batches.
struct Plan {
  std::int64_t epochs = 0;   // 0: run.steps was given
  std::int64_t samples = 0;  // of a whole batch
  std::int64_t first = 0;    // the answer of batches_per_update() for the first update, before anything was trained
};

// Main thread only.
struct Parts {
  Parts(Wiring& all, const std::atomic<int>& stop_flag) : wiring(all), stop(stop_flag) {}

  // The signal that ends the run after this step, or stopped_by_program, or 0. On several ranks: that of any of them.
  int stop_signal() const { return ranks.are_several() ? ranks.stop().load() : stop.load(); }
  bool is_out_of_time() const {  // on this rank
    return time_limit.count() > 0 && std::chrono::steady_clock::now() - made_at >= time_limit;
  }
  // Returns whether the run ends here, for another reason than the time.
  bool is_over(const Run& run) const {
    return run.step >= run.steps || !requests.finished.empty() || !outcome.diverged.empty() || stop_signal() != 0;
  }
  // Within a step, once it is counted.
  bool validates_after_step(const Run& run) const {
    const bool ends_epoch = run.batches_drawn / wiring.task->batches_per_epoch() > run.epoch;
    return run.step == run.steps || (validate_every == each_epoch && ends_epoch) ||
           (validate_every > 0 && run.step % validate_every == 0);
  }
  // Throws Error on all ranks if one of them does something else, or has come apart. doing: "a checkpoint".
  void agree(const Run& run, const std::string& doing, Ranks::Compared compared = Ranks::Compared::part) {
    const auto as = calls.as(wiring.distributed.get());
    ranks.agree(run, doing, compared);
  }
  std::string configured(Keys keys) const { return configuration ? configuration(keys) : ""; }

  Wiring& wiring;
  const std::atomic<int>& stop;  // a signal's number ends the run after the current step
  Calls calls{wiring};
  Role<Task> task{wiring.task, calls};
  Role<Precision> precision{wiring.precision, calls};
  Role<Scaler> scaler{wiring.scaler, calls};
  Role<Accumulation> accumulation{wiring.accumulation, calls};
  Role<Optimizer> optimizer{wiring.optimizer, calls};
  Role<Checkpoint> checkpoint{wiring.checkpoint, calls};
  Ranks ranks{wiring.distributed};
  Transaction transaction{wiring};
  SnapshotRing snapshots;
  UpdateLog update_log;
  StepClock clock;
  PluginTimes plugin_times;
  Requests requests;
  Progress progress;
  Plan plan;
  Outcome outcome;
  BuiltModel built;
  MakeDeviceGraph make_graph;                      // null: forward and backward are never recorded as graphs
  bool trains = true;                              // false: a trained model is only used
  std::int64_t validate_every = 0;                 // after prepare: steps, or each_epoch; 0: only after the last
  std::function<std::string(Keys)> configuration;  // resolved, a JSON object; compared on resume
  std::chrono::steady_clock::time_point made_at = std::chrono::steady_clock::now();
  std::chrono::seconds time_limit{0};  // from made_at on; then the step in work is the last, as after a signal; 0: none
};

}  // namespace vernier
