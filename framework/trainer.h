// The training loop. Trainer::step is the one to read first.
#pragma once

#include <vernier/roles.h>

#include <atomic>
#include <chrono>
#include <optional>
#include <string>

#include "exchange.h"
#include "fate.h"
#include "repeat.h"
#include "rewind.h"
#include "wiring.h"

namespace vernier {

// A role and its name: whoever was called last is named when something throws.
template <class T>
class Role {
 public:
  Role(const std::unique_ptr<T>& plugin, const Plugin*& called) : plugin_(plugin), called_(called) {}
  T* operator->() const {
    called_ = plugin_.get();
    return plugin_.get();
  }

 private:
  const std::unique_ptr<T>& plugin_;  // that the wiring has now: it may be exchanged
  const Plugin*& called_;
};

// How a run went, for summary.json.
struct Outcome {
  double seconds = 0;      // of the steps, without validation and checkpoints
  std::int64_t steps = 0;  // of this process, like seconds, samples and tokens; a resumed run has more
  std::int64_t samples = 0, tokens = 0;
  std::int64_t pieces = 0;
  std::int64_t updates = 0;                                     // applied in the whole run, the last step's included
  std::optional<double> loss, best_loss;                        // of the last step; the lowest of any
  std::optional<double> validation_loss, best_validation_loss;  // last and lowest
  int signal = 0;                                               // that ended the run early, or 0
  std::optional<std::string> error;                             // that ended it
};

// Main thread only.
class Trainer {
 public:
  // validate_every: 0 only after the last step. stop: a signal's number ends the run after the step in work.
  Trainer(Wiring& wiring, std::int64_t validate_every, const std::atomic<int>& stop);

  // Builds model, data and states: everything but training. Sets run.steps from `epochs` where that is given. init:
  // what is done to the new model before anything is made from it. Returns early where a signal came.
  void prepare(Run& run, std::int64_t epochs, const std::function<void(torch::nn::Module&)>& init = {});

  // Gives the configuration as resolved, a JSON object: kept in each snapshot, and compared where a run goes on.
  void describe(std::function<std::string()> configuration) { configuration_ = std::move(configuration); }

  // Goes on where a snapshot was taken; after prepare and describe. What is refused: restore_snapshot().
  void resume(Run& run, State snapshot, bool allow_inexact = false);

  // Whether nothing is left to be done.
  bool is_finished(const Run& run) const { return run.step >= run.steps && !validation_due_; }

  // Trains from run.step to run.steps, with a checkpoint at the end, at a signal, and where something throws between
  // two steps, or in one before its update; on a CPU none of weights that are not finite. What throws is told as
  // RunFailed and rethrown with plugin and step.
  Outcome train(Run& run);

  // What train() returned, or where it threw what is known then.
  const Outcome& outcome() const { return outcome_; }

  void step(Run& run);

  // The first half of a step, for `vernier check`: the gradients of the next batch, and nothing that uses them.
  void rehearse(Run& run);

  // Computes the gradients of a step once more, in a prepared run, for `vernier replay`: of a batch, from a snapshot that
  // was taken when it had come. begin: called when the run is as it was then.
  void replay(Run& run, const State& snapshot, const Batch& batch, const std::function<void()>& begin);
  // After that: its update. begin: called before the optimizer's step.
  void replay_update(Run& run, const std::function<void()>& begin);

  // Other plugins for some roles, between two steps; see exchange.h.
  void exchange(Run& run, const Table& roles);

 private:
  enum class Tries { once, smaller };  // smaller: pieces that find no memory are split again
  void compute_gradients(Run& run, Tries tries);
  void compute_pieces(Run& run);
  void compute_pieces_that_fit(Run& run);
  void emit_gradients_ready(Run& run);
  void keep_for_looks(Run& run);
  void update(Run& run);
  void apply_update(Run& run);
  void undo_update(Run& run, const std::function<void()>& begin, const std::function<void()>& end);
  void keep_for_undo(Run& run);
  void undo(Run& run);
  void refuse_too_much_memory(const Run& run);
  torch::Tensor forward(const std::function<torch::Tensor()>& body);
  void backward(const torch::Tensor& loss);
  static void name_parameters(Run& run);
  void settle(Run& run);
  void end_epoch(Run& run);
  void conclude(Run& run);
  bool validate(Run& run);
  State snapshot(const Run& run);
  void save(Run& run);
  void load(Run& run, const State& own);
  void go_back(Run& run);
  Control control(Run& run);
  Batch next_batch(Run& run);
  void pass_over_dropped(Run& run);
  std::int64_t samples_of_batch(const Run& run);
  std::int64_t steps_of(std::int64_t epochs, Run& run);
  void save_what_is_whole(Run& run);
  static bool is_spoiled(const Run& run);
  void save_unless_spoiled(Run& run);
  std::string configuration() const { return configuration_ ? configuration_() : ""; }
  static void begin_metrics(Run& run);
  void loop(Run& run);
  void complete_outcome(const Run& run);
  void exchange_what_is_asked(Run& run);
  void refuse_exchanges_that_never_fit();
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
  Role<Distributed> distributed_;

  std::int64_t validate_every_;
  const std::atomic<int>& stop_;
  BuiltModel built_;
  Table asked_;  // by Control::exchange, since the last exchange
  std::vector<std::pair<const Plugin*, Table>> tried_;  // what plugins may ask for later
  Rewind rewind_;
  Repeat repeat_;
  Undo undo_;
  UndoUpdate undo_update_;
  UndoUpdate::Looks looks_;  // at this step's update
  bool takes_looks_ = false, can_undo_update_ = false;
  std::chrono::steady_clock::time_point begun_;  // the last step
  std::int64_t begun_steps_ = 0;
  bool has_told_undo_ = false;  // that it is not possible
  bool can_undo_ = false;  // a step has begun, and no weight has changed
  struct {
    Plugin* asker = nullptr;
    std::int64_t back = 0, drop = 0;
  } asked_rewind_;
  struct {
    const Plugin* asker = nullptr;
    std::string why;
  } asked_failure_;
  std::int64_t saved_step_ = -1;
  std::int64_t rewound_from_ = -1;  // the step that the run went back from, until the next one tells it
  std::int64_t gathered_ = 1;       // batches of the task in the last step's
  std::int64_t samples_of_batch_ = 0;
  bool in_step_ = false;
  bool is_whole_ = false;        // the state is that of finished steps: it may be saved
  bool validation_due_ = false;  // after the last step, and not done
  std::function<std::string()> configuration_;
  torch::Tensor best_loss_;
  Fates fates_;
  Outcome outcome_;
};

}  // namespace vernier
