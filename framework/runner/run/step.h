// The training step. Step::step is the function to read first.
#pragma once

#include <array>
#include <functional>
#include <utility>

#include "parts.h"
#include "run/capture/captured_passes.h"

namespace vernier {

// Main thread only.
class Step {
 public:
  explicit Step(Parts& parts) : parts_(parts) {}
  void note_listeners();  // after prepare, and after a swap

  enum class Until { end, gradients };  // gradients: the step ends when they are computed, and nothing uses them
  void step(TrainerRun& run, Until until = Until::end);

  // Computes the gradients of run.batch. smaller: micro-batches that run out of memory are split again, and graphs of
  // the device may stand for the operators. once: every operator is called, as whoever looks at them needs.
  enum class Tries { once, smaller };
  void compute_gradients(TrainerRun& run, Tries tries);
  torch::Tensor recompute(TrainerRun& run);  // see Control::recompute
  void step_optimizer(TrainerRun& run);
  void end_epoch(TrainerRun& run);                 // if the task's data have been drawn once more
  std::int64_t samples_of_batch(TrainerRun& run);  // of a whole batch of the task; draws one, and puts it back
  // The next batches come from this function; null: from the task again.
  void replay(std::function<Batch()> replayed) { replayed_ = std::move(replayed); }

 private:
  std::string why_not_captured() const;
  void begin_step(TrainerRun& run);
  void emit(Event event, TrainerRun& run, Part next);  // next: what the time after the event is spent on
  void skip_dropped_batches(TrainerRun& run);
  Batch next_batch(TrainerRun& run);
  Batch draw_batch(TrainerRun& run);
  void compute_micro_batches(TrainerRun& run, Tries tries);
  void compute_micro_batches_that_fit(TrainerRun& run);
  torch::Tensor loss_of_micro_batch(TrainerRun& run);
  const WholeBatch& whole_batch();
  void all_reduce(TrainerRun& run);
  void refuse_loss_of_others(const TrainerRun& run);
  void refuse_wrong_gradients(const TrainerRun& run, Event event);
  void share_weights(TrainerRun& run);
  void finish_step(TrainerRun& run);

  Parts& parts_;
  Wiring& wiring_ = parts_.wiring;
  Calls& calls_ = parts_.calls;
  Role<Task> task_ = parts_.task;
  Role<Precision> precision_ = parts_.precision;
  Role<Scaler> scaler_ = parts_.scaler;
  Role<Accumulation> accumulation_ = parts_.accumulation;
  Role<Optimizer> optimizer_ = parts_.optimizer;
  Ranks& ranks_ = parts_.ranks;
  Transaction& transaction_ = parts_.transaction;
  UpdateLog& update_log_ = parts_.update_log;
  StepClock& clock_ = parts_.clock;
  CapturedPasses passes_;
  std::array<bool, event_count> has_listeners_{};  // the clock is not read around the other events
  std::function<Batch()> replayed_;                // instead of the task's next batch
  std::int64_t gathered_ = 1;                      // batches of the task in the last step's
};

// Counts run.steps anew if the run was planned in epochs and the accumulation's answers depend on what was trained.
void plan_again(Parts& parts, TrainerRun& run);

// Runs body in the run's precision. Errors after body are the precision's.
torch::Tensor forward(Calls& calls, const Role<Precision>& precision, const std::function<torch::Tensor()>& body);

}  // namespace vernier
