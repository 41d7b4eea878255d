#include "training_loop.h"

#include <c10/util/ScopeExit.h>
#include <vernier/error.h>
#include <vernier/memory.h>

#include <chrono>
#include <cmath>
#include <utility>

#include "control.h"
#include "run/process/device.h"

namespace vernier {

namespace {

void complete_outcome(Parts& parts, const Run& run) {
  auto& outcome = parts.outcome;
  const auto last = parts.update_log.last();  // on a GPU it is known only now
  outcome.updates = run.updates + (last && !is_skipped(last->result) ? 1 : 0);
  if (run.loss.defined()) outcome.loss = run.loss.item<double>();
  if (parts.progress.best_loss.defined()) outcome.best_loss = parts.progress.best_loss.item<double>();
  outcome.slow_plugins = parts.plugin_times.slow();
  outcome.times = parts.clock.totals(run.device.is_cpu());
}

void count_step(Parts& parts, const Run& run) {
  const auto& whole = parts.ranks.whole();
  parts.outcome.steps += 1;
  parts.outcome.samples += std::llround(whole.samples);
  parts.outcome.tokens += whole.tokens;
  parts.outcome.micro_batches += run.micro_batches;
}

std::string divergence_of(const std::string& weight) {
  return "the weight " + weight + " is not finite";
}

// Returns what is not finite at the end of a run that no error ended. A loss whose update was skipped has changed
// nothing.
std::string divergence(Parts& parts, const Run& run) {
  if (const auto weight = not_finite(run); !weight.empty()) return divergence_of(weight);
  const auto& loss = parts.outcome.loss;
  const auto last = parts.update_log.last();
  if (!loss || std::isfinite(*loss) || is_skipped(last ? last->result : run.last_update)) return "";
  return "the last loss is not finite";
}

// Undoes the step that ended the run, so that the run can be saved. Saving must not fail for the same reason, so the
// memory limit goes. The step's notices stay.
void undo_failed_step(Parts& parts, Saving& saving, TrainerRun& run) {
  const auto notices = run.notices;
  try {
    limit_memory(run.device, 0);
    parts.transaction.roll_back(Stage::begin, run);
    run.notices = notices;
    parts.requests.pending = {};
    parts.requests.finished.clear();
    saving.whole_again();
  } catch (...) {
    log(Level::warning, "trainer", "the step cannot be undone, and is not saved: " + caught().message);
  }
}

// Returns whether another step follows. There is always one, because a job that is queued again must get on.
bool goes_on(const Parts& parts, const Run& run) {
  if (parts.is_over(run)) return false;
  if (parts.outcome.steps == 0) return true;
  return parts.ranks.are_several() ? !parts.ranks.is_out_of_time() : !parts.is_out_of_time();
}

}  // namespace

TrainingLoop::TrainingLoop(Wiring& wiring, std::int64_t validate_every, const std::atomic<int>& stop)
    : parts_(wiring, stop),
      step_(parts_),
      validation_(parts_),
      saving_(parts_),
      requests_(parts_, step_, validation_, saving_) {
  parts_.validate_every = validate_every;
}

void TrainingLoop::prepare(TrainerRun& run, std::int64_t epochs, const InitModel& init) {
  run.stop = &parts_.stop;
  run.results_are_late = run.results_are_late || !run.device.is_cpu();
  control_ = std::make_unique<TrainerControl>(parts_, step_, saving_, run);
  run.control = control_.get();
  parts_.calls.attributed(run, [&] { prepare_plugins(parts_, step_, run, epochs, init); });
}

void TrainingLoop::resume(TrainerRun& run, State snapshot, bool allow_inexact) {
  saving_.resume(run, std::move(snapshot), allow_inexact);
}

bool TrainingLoop::is_finished(const Run& run) const {
  return (run.step >= run.steps || !finished().empty()) && !parts_.progress.validation_due;
}

Outcome TrainingLoop::train(TrainerRun& run) {
  saved_on_failure(run, [&] {
    if (!is_running_) begin(run);
    while (goes_on(parts_, run)) advance(run);
    end(run);
  });
  return parts_.outcome;
}

bool TrainingLoop::train_step(TrainerRun& run) {
  bool is_trained = false;
  saved_on_failure(run, [&] {
    if (!is_running_) begin(run);
    is_trained = goes_on(parts_, run);
    if (is_trained) advance(run);
    if (!is_trained || parts_.is_over(run)) end(run);
  });
  return is_trained;
}

// Runs a part of a run. If it throws, the run is saved if it is whole, and is over.
void TrainingLoop::saved_on_failure(TrainerRun& run, const std::function<void()>& part) {
  try {
    parts_.calls.attributed(run, part);
  } catch (...) {
    const auto failure = std::current_exception();
    is_running_ = false;
    if (parts_.transaction.can_undo()) undo_failed_step(parts_, saving_, run);
    saving_.save_what_is_whole(run);
    try {
      HostApi::emit(parts_.wiring.bus, Event::RunFailed, run);
    } catch (...) {
      log(Level::error, "RunFailed", caught().message);
    }
    try {
      parts_.outcome.error = caught().message;
      complete_outcome(parts_, run);
    } catch (...) {
      log(Level::error, "trainer", "what became of the run is not known in full: " + caught().message);
    }
    std::rethrow_exception(failure);
  }
  if (is_running_) return;
  complete_outcome(parts_, run);
  if (parts_.outcome.diverged.empty()) parts_.outcome.diverged = divergence(parts_, run);
  for (const auto& [plugin, share] : parts_.outcome.slow_plugins) {
    log(Level::warning, plugin, c10::str("took ", std::lround(100 * share), " % of the steps' time"));
  }
}

Outcome TrainingLoop::outcome_now(const Run& run, const std::string& error) {
  complete_outcome(parts_, run);
  auto outcome = parts_.outcome;
  outcome.error = error;
  return outcome;
}

void TrainingLoop::begin(TrainerRun& run) {
  is_running_ = true;
  run.metrics = {};
  HostApi::emit(parts_.wiring.bus, Event::RunBegin, run);
  run.moment = RunFacts::Moment::other;
  (void)saving_.snapshot(run);  // what no checkpoint can keep is refused now, and not after hours
  requests_.agree(run);
  if (parts_.progress.validation_due) {
    saving_.outdate();
    conclude(run);
  } else {
    requests_.swap_if_asked(run);
  }
  saving_.save_in_memory_if_due(run);
  requests_.let_look(run);
}

// One step, and what comes after it.
void TrainingLoop::advance(TrainerRun& run) {
  {
    const auto changing = saving_.changing();
    const auto start = std::chrono::steady_clock::now();
    run.validates = false;
    {
      const auto in_step = parts_.calls.in_step(run);
      parts_.plugin_times.begin_step(parts_.outcome.steps);
      const auto timed = c10::make_scope_exit([this] {
        parts_.clock.stop();
        parts_.plugin_times.end_step();
      });
      const auto before = run.step;
      try {
        step_.step(run);
      } catch (...) {
        run.step = before;  // it is not done
        throw;
      }
    }
    parts_.progress.validation_due = run.validates;
    if (run.validates) synchronize(run.device);  // or the time that the device still takes would belong to nobody
    parts_.outcome.seconds += seconds_since(start);
    count_step(parts_, run);
    run.notices.clear();  // every listener has seen them
  }
  conclude(run);
  requests_.let_look(run);
}

// After a step: a validation, the end of an epoch, a checkpoint.
void TrainingLoop::conclude(TrainerRun& run) {
  requests_.agree(run);
  if (parts_.requests.pending.rewinder != nullptr) return saving_.rewind(run);
  requests_.cancel_failure_if_swapped();
  const bool is_validated = !parts_.progress.validation_due || validation_.validate(run);
  requests_.agree(run);
  if (is_validated) {
    parts_.progress.validation_due = false;
    const auto changing = saving_.changing();
    step_.end_epoch(run);
  }
  requests_.fail_if_asked();
  if (!is_validated) return;
  requests_.swap_if_asked(run);  // before a checkpoint, so that it contains the swap
  saving_.save_in_memory_if_due(run);
  const bool can_go_back = !parts_.snapshots.empty();
  if (const auto weight = can_go_back ? "" : saving_.spoiled_weight(run); !weight.empty()) {
    parts_.outcome.diverged = divergence_of(weight);
  } else if (parts_.checkpoint->due(run)) {
    saving_.save_unless_spoiled(run);
  }
}

void TrainingLoop::end(TrainerRun& run) {
  auto& outcome = parts_.outcome;
  outcome.signal = is_finished(run) ? 0 : parts_.stop_signal();
  outcome.is_out_of_time = !is_finished(run) && outcome.signal == 0 && outcome.diverged.empty();
  outcome.finished = run.step < run.steps ? finished() : "";
  parts_.agree(run, "the end of the run", Ranks::Compared::all_weights);
  if (!saving_.is_saved(run)) saving_.save_unless_spoiled(run);
  parts_.update_log.conclude(run);
  HostApi::emit(parts_.wiring.bus, Event::RunEnd, run);
  is_running_ = false;
}

}  // namespace vernier
