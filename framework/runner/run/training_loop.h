// The training loop. TrainingLoop::step is the function to read first.
#pragma once

#include <vernier/between_steps.h>
#include <vernier/roles.h>

#include <array>
#include <atomic>
#include <chrono>
#include <map>
#include <optional>
#include <set>
#include <string>

#include "run/process/plugin_times.h"
#include "run/process/ranks.h"
#include "run/state/snapshot_ring.h"
#include "run/process/step_clock.h"
#include "run/state/transaction.h"
#include "run/process/update_log.h"
#include "wiring/swap.h"
#include "wiring/wiring.h"

namespace vernier {

// A role and its name: the plugin that was called last is named when something throws.
template <class T>
class Role {
 public:
  Role(const std::unique_ptr<T>& plugin, const Plugin*& called) : plugin_(plugin), called_(called) {}
  T* operator->() const {
    called_ = plugin_.get();
    return plugin_.get();
  }

 private:
  const std::unique_ptr<T>& plugin_;  // that the wiring has now: it may be swapped
  const Plugin*& called_;
};

// The value of `stop` if the program that the trainer is part of ends the run, not a signal.
constexpr int stopped_by_program = -1;

// How a run went, for summary.json.
struct Outcome {
  double seconds = 0;      // of the steps, without validation and checkpoints
  std::int64_t steps = 0;  // of this process, like seconds, samples and tokens; a resumed run has more
  std::int64_t samples = 0, tokens = 0;
  std::map<std::string, double> times;  // seconds of this process: StepClock::totals()
  std::int64_t micro_batches = 0;
  std::int64_t updates = 0;                                     // applied in the whole run, the last step's included
  std::optional<double> loss, best_loss;                        // of the last step; the lowest of any
  std::optional<double> validation_loss, best_validation_loss;  // last and lowest
  int signal = 0;                                               // that ended the run early, or stopped_by_program, or 0
  bool is_out_of_time = false;                                  // the time limit ended the run early
  std::string finished;                        // who ended the run before its last planned step, and why; "": nobody
  std::optional<std::string> error;            // that ended it
  std::string diverged;                        // where none did: what is not finite at the end; "" if nothing is
  std::map<std::string, double> slow_plugins;  // the share of the steps' time that their listeners took
};

// Main thread only.
class TrainingLoop {
 public:
  // validate_every: 0 validates after the last step only. stop: a signal's number ends the run after the current step.
  TrainingLoop(Wiring& wiring, std::int64_t validate_every, const std::atomic<int>& stop);

  // If true, a step that fails before its update is undone, and the run saved. The default.
  void undo_failed_steps(bool undo) { transaction_.undo_failed_steps(undo); }

  // Ends the run at the end of the first step after this time, with a checkpoint, as a signal does. 0: no limit. The
  // time begins when the trainer is made.
  void limit_time(std::chrono::seconds limit) { time_limit_ = limit; }

  // Builds model, data and states: everything but training. Sets run.steps from `epochs` where that is not 0. init:
  // changes the new model before anything is made from it. Returns early where a signal came.
  void prepare(Run& run, std::int64_t epochs, const std::function<void(torch::nn::Module&)>& init = {});

  // Gives the resolved configuration, a JSON object: part of each snapshot, and compared on resume.
  void describe(std::function<std::string(Keys)> configuration) { configuration_ = std::move(configuration); }

  // Continues where a snapshot was taken; after prepare and describe. What is refused: restore_snapshot().
  void resume(Run& run, State snapshot, bool allow_inexact = false);

  // True if nothing is left to do.
  bool is_finished(const Run& run) const { return (run.step >= run.steps || !finished_.empty()) && !validation_due_; }
  // The plugin that ended the run before its last planned step, and why; "" where none did.
  const std::string& finished() const { return finished_; }

  // Trains from run.step to run.steps. Writes a checkpoint at the end, at a signal, and where something throws between
  // two steps or before the update of one; on a CPU none of weights that are not finite. An exception is emitted as
  // RunFailed and rethrown with plugin and step.
  Outcome train(Run& run);
  // The same, a step a call, for a caller with a loop of its own. The first call begins the run. The call that trains
  // the last step also ends the run. Returns whether it trained a step: false where none followed, and the run ends.
  bool train_step(Run& run);
  // True if the run has begun, by train_step(), and has not ended.
  bool is_running() const { return is_running_; }

  // The task's validation loss now, between two steps, if it has one; its other numbers are in run.metrics. No event is
  // emitted, so that the run's numbers do not depend on it.
  std::optional<double> validation_loss(Run& run);
  // Has the checkpoint plugin write the run as it is, between two steps; not twice. Throws Error where a weight is not
  // finite.
  void save_now(Run& run);

  // The result of train(), or as much of it as is known if it threw.
  const Outcome& outcome() const { return outcome_; }
  // The result as it is known in mid-run, for a plugin that ends the process; error: why.
  Outcome outcome_now(const Run& run, const std::string& error);

  // The end of a step. gradients: when they are computed, for dry_run and replay; nothing uses them then.
  enum class Until { end, gradients };
  void step(Run& run, Until until = Until::end);

  // A whole step, counted, without what comes between steps, for `vernier check --find-lr`. Errors name the plugin.
  void lone_step(Run& run);
  // A step up to its gradients, for `vernier check`.
  void dry_run(Run& run);
  // After that: an update that is skipped. The optimizer makes its state in it, and no weight changes.
  void skipped_update(Run& run);
  // After that: what a run does for the first time after hours. Validates; has the task save and load its state, and
  // draws a batch. Warns if the task would have drawn another one without that. Errors name plugin and function.
  // Returns the validation's loss, if there is one.
  std::optional<double> rehearse(Run& run);

  // Runs `body` as a validation: the model in evaluation mode, without gradients, in the run's precision, within the
  // callbacks' validate(). It returns a loss, or an undefined tensor where there is none.
  torch::Tensor evaluate(Run& run, const std::function<torch::Tensor()>& body);

  // The same in a prepared run for `vernier replay`: of this batch, from a snapshot that was taken when it had come.
  // begin: called when the run is as it was then.
  void replay(Run& run, const State& snapshot, const Batch& batch, const std::function<void()>& begin);

  // Other plugins for some roles, between two steps; see swap.h.
  void swap(Run& run, const Table& roles);

 private:
  friend class TrainerControl;
  friend class TrainerBetweenSteps;
  enum class Tries { once, smaller };  // smaller: micro-batches that run out of memory are split again
  void begin_step(Run& run);
  void emit(Event event, Run& run, Part next);  // next: what the time after the event is spent on
  void note_listeners();                        // after prepare, and after a swap
  void skip_dropped_batches(Run& run);
  Batch next_batch(Run& run);
  Batch draw_batch(Run& run);
  void compute_gradients(Run& run, Tries tries = Tries::smaller);
  void all_reduce(Run& run);
  const WholeBatch& whole_batch();
  void compute_micro_batches(Run& run);
  void compute_micro_batches_that_fit(Run& run);
  void refuse_too_much_memory(const Run& run);
  torch::Tensor forward(const std::function<torch::Tensor()>& body);
  void backward(const torch::Tensor& loss);
  void divide_gradients(Run& run);
  void step_optimizer(Run& run);
  void share_weights(Run& run);
  void finish_step(Run& run);
  torch::Tensor recompute(Run& run);
  static void refuse_other_samples(const Batch& batch);
  static torch::Tensor mean_of(torch::Tensor loss, const char* function);

  static void name_parameters(Run& run);
  std::int64_t samples_of_batch(Run& run);
  std::int64_t steps_of(std::int64_t epochs, Run& run);
  void prepare_task(Run& run, const std::function<void(torch::nn::Module&)>& init);
  void refuse_other_programs(const Run& run) const;
  void refuse_other_data(const Run& run) const;

  void saved_on_failure(Run& run, const std::function<void()>& part);
  void begin(Run& run);
  void advance(Run& run);
  void end(Run& run);
  int stop_signal() const { return ranks_.are_several() ? ranks_.stop() : stop_; }
  bool is_out_of_time() const;
  bool is_over(const Run& run) const;
  bool goes_on(const Run& run) const;
  void count_outcome(const Run& run);
  void complete_outcome(const Run& run);
  void conclude(Run& run);
  void let_look(Run& run);
  void fail_if_asked();
  void end_epoch(Run& run);
  bool validate(Run& run);
  torch::Tensor evaluate(Run& run);
  torch::Tensor in_callbacks(Run& run, const std::function<torch::Tensor()>& innermost);
  State snapshot(const Run& run);
  void save(Run& run);
  void save_finite(Run& run);
  void load(Run& run, const State& own);
  void rewind(Run& run);
  void undo_failed_step(Run& run);
  void save_what_is_whole(Run& run);
  static std::string not_finite(const Run& run);
  std::string bad_weight(const Run& run);
  bool is_spoiled(const Run& run);
  std::string divergence(const Run& run);
  void save_unless_spoiled(Run& run);
  std::string configuration(Keys keys) const { return configuration_ ? configuration_(keys) : ""; }
  void swap_what_is_asked(Run& run);
  std::string moment(const Run& run) const;
  void attributed(const Run& run, const std::function<void()>& body);

  Wiring& wiring_;
  Bus& bus_;
  const Plugin* called_ = nullptr;
  Role<Task> task_;
  Role<Precision> precision_;
  Role<Scaler> scaler_;
  Role<Accumulation> accumulation_;
  Role<Optimizer> optimizer_;
  Role<Checkpoint> checkpoint_;
  Ranks ranks_;

  std::int64_t validate_every_;
  const std::atomic<int>& stop_;
  BuiltModel built_;
  Transaction transaction_;
  SnapshotRing snapshots_;
  UpdateLog update_log_;
  PluginTimes plugin_times_;
  StepClock clock_;
  std::array<bool, event_count> has_listeners_{};  // the clock is not read around the other events
  std::unique_ptr<Control> control_;

  // Requests of plugins through Control, until they are carried out.
  struct Requests {
    Table swap;
    Plugin* rewinder = nullptr;
    std::int64_t back = 0, drop = 0;
    std::string also;
    const Plugin* failing = nullptr;
    std::string why;
  } requests_;

  std::vector<std::pair<const Plugin*, std::function<bool(BetweenSteps&)>>> between_steps_;  // Control::between_steps
  std::string finished_;  // by Control::finish: the plugin, and why
  std::chrono::steady_clock::time_point made_at_ = std::chrono::steady_clock::now();
  std::chrono::seconds time_limit_{0};

  std::function<Batch()> replayed_;  // in the place of the task's next batch
  std::int64_t saved_step_ = -1;
  std::int64_t rewound_from_ = -1;  // the step that the run went back from, until the next step reports it
  std::int64_t gathered_ = 1;       // batches of the task in the last step's
  std::int64_t samples_of_batch_ = 0;
  bool is_running_ = false;  // between RunBegin and RunEnd
  bool in_step_ = false;
  bool is_whole_ = false;        // the state is that of finished steps: it may be saved
  bool validation_due_ = false;  // after the last step, and not done
  std::function<std::string(Keys)> configuration_;
  torch::Tensor best_loss_;
  std::set<std::string> warnings_;  // of LibTorch, so far
  Outcome outcome_;
};

}  // namespace vernier
