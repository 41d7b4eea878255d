// What a plugin may ask of the trainer. What it asks for is done between two steps, after the step in work.
#pragma once

#include <vernier/options.h>
#include <vernier/state.h>

#include <cstdint>
#include <functional>
#include <string>

namespace vernier {

class Plugin;
struct Run;

// Set by the trainer; all of it is valid from Plugin::prepare on, on the main thread. Where several things are asked for
// in one step, rewind() comes first, then exchange(); fail() is forgotten where one of them was asked for, for the run may
// live on. What is asked for at Validated comes after the step that follows, but for an exchange.
struct VERNIER_API Control {
  // Other plugins in some roles, from the next step on: {"precision": {use = "bf16"}}, as the TOML would say it. What is
  // asked for in one step is exchanged together, before a checkpoint, and told by policy_changed in the next. A refusal
  // ends the run, which is then as it was. only_try: just throws what the tables alone show to be wrong, for
  // Plugin::prepare. Not for the task, callbacks and monitors. The plugins before are destroyed.
  std::function<void(const Table& roles, bool only_try)> exchange;

  // For Plugin::prepare: from now on the trainer keeps copies in memory of all that the run depends on, one each `every`
  // steps, the newest `keep` of them. They are part of each checkpoint. An exchange starts them anew.
  std::function<void(std::int64_t every, std::int64_t keep)> keep_snapshots;
  // Goes back to the newest of them that is at least `back` steps old, counted from the end of the step in work, or else
  // to the oldest. The batches of the last `drop` updates, this step's included, are passed over when their turn comes
  // again (each is taken to have had as many as this one). All
  // plugins forget what came since, but for the asker, which keeps its memory: it counts how often it asks. Neither
  // validation nor checkpoint follow the step that is given up. Throws Error where nothing is kept.
  std::function<void(Plugin& asker, std::int64_t back, std::int64_t drop)> rewind;

  // Ends the run as failed, in the asker's name, with a checkpoint after the step in work.
  std::function<void(const Plugin& asker, const std::string& why)> fail;

  // The least of the values that all ranks give at this moment, so that they decide alike; `value` where there is one.
  std::function<std::int64_t(std::int64_t value)> least;

  // All that the run depends on, as a checkpoint would have it: in GradientsReady that is the model before the update.
  // The tensors are the live ones: whoever keeps them longer than the event copies.
  std::function<State()> snapshot;

  // For Plugin::prepare: from now on the trainer keeps, when a step's batch is there, all that computing its gradients
  // changes: random generators, buffers, memory of plugins; but for the asker's.
  std::function<void(const Plugin& asker)> keep_for_repeat;
  // In GradientsReady, after keep_for_repeat: computes the gradients of this step once more from what was kept, telling
  // BatchReady and LossReady again. begin: called when the run is as it was at first, so that snapshot() is that of the
  // step's beginning. end: when run has the new loss and gradients. After it all is as before the call, loss and
  // gradients too. False where a listener has changed the gradients since they were computed.
  std::function<bool(const std::function<void()>& begin, const std::function<void()>& end)> repeat;

  // In GradientsReady: has the trainer copy what this step's update will change (weights, gradients, memory of optimizer
  // and precision: as much memory again), and call `look` after the update, before Scaler::update.
  std::function<void(const Plugin& asker, std::function<void(Run& run)> look)> look_at_update;
  // In `look` alone: undoes the update, and has it skipped as by run.found_inf, which is not 0 then. Before that it is
  // done once more: begin is called when all is as it was before the update, repeat() included; end when it is done.
  std::function<void(const std::function<void()>& begin, const std::function<void()>& end)> undo_update;
};

}  // namespace vernier
