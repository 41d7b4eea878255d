// Requests that a plugin may make of the trainer: swap, rewind, rerun, fail, finish. Main thread only.
#pragma once

#include <vernier/options.h>
#include <vernier/state.h>
#include <vernier/tensor.h>

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

namespace vernier {

class BetweenSteps;
class Plugin;

// run.control, valid from Plugin::prepare on. swap(), rewind() and fail() are carried out after the step. A rewind
// cancels the swap and the failure that the same step asked for. A swap cancels the failure. Nothing can be asked for
// as the run ends, at RunEnd and RunFailed.
class VERNIER_API Control {
 public:
  virtual ~Control();

  // Puts other plugins into some roles from the next step on: {"precision": {use = "bf16"}}, as the TOML would say it.
  // All swaps of a step happen together, before its checkpoint; run.swapped names the roles in the next step. A swap
  // that is refused ends the run, which is then as before it. Destroys the old plugins. Not for task, callbacks and
  // monitors.
  virtual void swap(const Table& roles) = 0;
  // For Plugin::prepare, of tables that may be asked for later: throws Error where one of them is wrong by itself.
  virtual void try_swap(const Table& roles) = 0;

  // For Plugin::prepare: has the trainer keep full copies of the run in memory, one each `every` steps, the newest
  // `keep` of them. They are part of each checkpoint. A swap drops them.
  virtual void keep_savepoints(std::int64_t every, std::int64_t keep) = 0;
  // Goes back to the newest copy that is at least `back` steps old at the end of this step, or else to the oldest.
  // Drops the batches of the last `drop` updates, this step's included: they are skipped when their turn comes again.
  // All plugins forget what came since. The requesting plugin keeps its state, so that it can count its requests,
  // except the entries of its State below `also`/. No validation and no checkpoint follow the step. Throws Error if
  // no copy is kept.
  virtual void rewind(Plugin& requester, std::int64_t back, std::int64_t drop, const std::string& also = "") = 0;

  // Ends the run as failed after this step, in the requester's name, with a checkpoint.
  virtual void fail(const Plugin& requester, const std::string& why) = 0;

  // Ends the run as done, as if this step had been planned as its last: with a validation, a checkpoint and RunEnd. At
  // Validated, without another validation. summary.json has the requester's name and `why`. Resuming the run says so;
  // it trains on only if more steps are planned then. A rewind or a failure that the same step asked for cancels it. On
  // several ranks, all must ask in the same step.
  virtual void finish(const Plugin& requester, const std::string& why) = 0;
  virtual bool finishes() const = 0;  // whether finish() was called, by any plugin

  // Several processes may train one model (role `distributed`).
  virtual std::int64_t rank() const = 0;   // the rank of this process; 0 if it is alone
  virtual std::int64_t ranks() const = 0;  // 1 if it is alone
  // Returns the entries of each rank, by rank, on the CPU. All ranks must call it at the same moment.
  virtual std::vector<State> gather(const State& of_this_rank) = 0;

  // For Plugin::prepare: calls `look` before the first step and after each one, when its validation, its swaps and its
  // checkpoint are done. Calls it again as long as it returns true, until the run ends. See between_steps.h. Not for
  // roles that swap() changes.
  virtual void between_steps(const Plugin& requester, std::function<bool(BetweenSteps&)> look) = 0;

  // All that the run depends on, as a checkpoint would have it. The tensors are the live ones: copy what you keep.
  virtual State snapshot() = 0;

  // Runs the micro-batches of this batch again, leaves new gradients and returns the loss: for optimizers that need
  // more than one pass. Valid inside Optimizer::step and in listeners of GradientsReady. skip_update of any pass
  // counts.
  virtual torch::Tensor recompute() = 0;
  // The same at other weights. move is called first, without autograd, and may change weights: `master`, where a
  // parameter has one. On return weights and buffers are as before, bit for bit, also if something throws. Takes their
  // memory once more. Not for masters that have no memory between steps.
  virtual torch::Tensor recompute_at(const std::function<void()>& move) = 0;

  // For Plugin::prepare: has the trainer copy the run in every step, when its batch is there, without the
  // requester's own memory.
  virtual void want_rerun(const Plugin& requester) = 0;
  // Computes the gradients again on the side, from that copy. Valid in GradientsReady, for plugins that wanted it.
  // begin is called when the run is as it was then, end when the gradients are there. Monitors are not called. On
  // return the run is unchanged, including loss and gradients, whatever was thrown. Returns false if a listener has
  // changed the gradients since they were computed.
  virtual bool rerun(const std::function<void()>& begin, const std::function<void()>& end) = 0;
};

}  // namespace vernier
