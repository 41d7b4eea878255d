#include "training_loop.h"

#include <vernier/memory.h>

#include <cmath>

#include "control.h"

namespace vernier {

namespace {

void complete_outcome(Outcome& outcome, Step& step, const Validation& validation, const PluginTimes& plugin_times,
                      const Run& run) {
  static_cast<ValidationOutcome&>(outcome) = validation.outcome();
  auto& log = step.update_log();
  const auto last = log.last();  // on a GPU it is known only now
  outcome.updates = run.updates + (last && !is_skipped(last->result) ? 1 : 0);
  if (run.loss.defined()) outcome.loss = run.loss.item<double>();
  if (log.best_loss().defined()) outcome.best_loss = log.best_loss().item<double>();
  outcome.slow_plugins = plugin_times.slow();
  outcome.times = step.clock().totals(run.device.is_cpu());
}

std::string divergence_of(const std::string& weight) {
  return "the weight " + weight + " is not finite";
}

// Returns what is not finite at the end of a run that no error ended. A loss whose update was skipped has changed
// nothing.
std::string divergence(const Outcome& outcome, UpdateLog& log, const Run& run) {
  if (const auto weight = not_finite(run); !weight.empty()) return divergence_of(weight);
  const auto last = log.last();
  if (!outcome.loss || std::isfinite(*outcome.loss) || is_skipped(last ? last->result : run.last_update)) return "";
  return "the last loss is not finite";
}

// Undoes the step that ended the run, so that the run can be saved. Saving must not fail for the same reason, so the
// memory limit goes. The step's notices stay.
void undo_failed_step(Step& step, Saving& saving, Requests& asked, TrainerRun& run) {
  const auto notices = run.notices;
  try {
    limit_memory(run.device, 0);
    step.transaction().roll_back(Stage::begin, run);
    run.notices = notices;
    asked.drop();
    saving.whole_again();
  } catch (...) {
    log(Level::warning, "trainer", "the step cannot be undone, and is not saved: " + caught().message);
  }
}

}  // namespace

TrainingLoop::TrainingLoop(Wiring& wiring, std::int64_t validate_every, const std::atomic<int>& stop)
    : roles_(wiring),
      ending_(stop, roles_.ranks, asked_),
      step_(roles_, snapshots_, ending_, validate_every),
      validation_(roles_, step_.clock()),
      saving_(roles_, step_, validation_, asked_, snapshots_),
      requests_(roles_, validation_, saving_, asked_, ending_) {}

void TrainingLoop::prepare(TrainerRun& run, std::int64_t epochs, const InitModel& init, bool trains) {
  run.stop = &ending_.flag();
  run.results_are_late = run.results_are_late || !run.device.is_cpu();
  control_ = std::make_unique<TrainerControl>(roles_, step_, validation_, saving_, snapshots_, asked_, run);
  run.control = control_.get();
  roles_.calls.attributed(run, [&] { prepare_plugins(roles_, step_, saving_, run, epochs, init, trains); });
}

bool TrainingLoop::is_finished(const Run& run) const {
  return (run.step >= run.steps || !asked_.finished().empty()) && !validation_.is_due();
}

Outcome TrainingLoop::train(TrainerRun& run) {
  saved_on_failure(run, [&] {
    if (!is_running_) begin(run);
    while (ending_.goes_on(run, outcome_.steps)) advance(run);
    end(run);
  });
  return outcome_;
}

bool TrainingLoop::train_step(TrainerRun& run) {
  bool is_trained = false;
  saved_on_failure(run, [&] {
    if (!is_running_) begin(run);
    is_trained = ending_.goes_on(run, outcome_.steps);
    if (is_trained) advance(run);
    if (!is_trained || ending_.is_over(run)) end(run);
  });
  return is_trained;
}

// Runs a part of a run. If it throws, the run is saved if it is whole, and is over.
void TrainingLoop::saved_on_failure(TrainerRun& run, const std::function<void()>& part) {
  try {
    roles_.calls.attributed(run, part);
  } catch (...) {
    const auto failure = std::current_exception();
    is_running_ = false;
    if (step_.transaction().can_undo()) undo_failed_step(step_, saving_, asked_, run);
    saving_.save_what_is_whole(run);
    asked_.end();
    HostApi::emit(roles_.wiring.bus, Event::RunFailed, run);
    try {
      outcome_.error = caught().message;
      complete_outcome(outcome_, step_, validation_, plugin_times_, run);
    } catch (...) {
      log(Level::error, "trainer", "what became of the run is not known in full: " + caught().message);
    }
    std::rethrow_exception(failure);
  }
  if (is_running_) return;
  complete_outcome(outcome_, step_, validation_, plugin_times_, run);
  if (ending_.diverged().empty()) ending_.diverge(divergence(outcome_, step_.update_log(), run));
  outcome_.diverged = ending_.diverged();
  for (const auto& [plugin, share] : outcome_.slow_plugins) {
    log(Level::warning, plugin, c10::str("took ", std::lround(100 * share), " % of the steps' time"));
  }
}

Outcome TrainingLoop::outcome_now(const Run& run, const std::string& error) {
  complete_outcome(outcome_, step_, validation_, plugin_times_, run);
  auto outcome = outcome_;
  outcome.error = error;
  return outcome;
}

void TrainingLoop::begin(TrainerRun& run) {
  is_running_ = true;
  asked_.end(false);
  run.metrics = {};
  HostApi::emit(roles_.wiring.bus, Event::RunBegin, run);
  run.moment = RunFacts::Moment::other;
  (void)saving_.snapshot(run);  // refuses now what no checkpoint can keep, and not after hours
  requests_.agree(run);
  if (validation_.is_due()) {
    saving_.outdate();
    conclude(run);
  } else {
    asked_.cancel_failure_if_swapped();
    requests_.fail_if_asked();
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
      const auto in_step = roles_.calls.in_step(run);
      plugin_times_.begin_step(outcome_.steps);
      const auto timed = c10::make_scope_exit([this] {
        step_.clock().stop();
        plugin_times_.end_step();
      });
      const auto before = run.step;
      try {
        step_.step(run);
      } catch (...) {
        run.step = before;  // it is not done
        throw;
      }
    }
    validation_.schedule(run.validates);
    if (run.validates) synchronize(run.device);  // or the time that the device still takes would belong to nobody
    const auto& whole = roles_.ranks.whole();
    const auto seconds = seconds_since(start);
    run.amp.add_seconds(seconds);
    outcome_.seconds += seconds;
    outcome_.steps += 1;
    outcome_.samples += std::llround(whole.samples);
    outcome_.tokens += whole.tokens;
    outcome_.micro_batches += step_.micro_batches();
    run.notices.clear();  // every listener has seen them
  }
  conclude(run);
  requests_.let_look(run);
}

// After a step: a validation, the end of an epoch, a checkpoint.
void TrainingLoop::conclude(TrainerRun& run) {
  requests_.agree(run);
  if (asked_.wants_rewind()) return saving_.rewind(run);
  asked_.cancel_failure_if_swapped();
  const bool was_due = validation_.is_due();
  bool is_validated = !was_due || validation_.validate(run);
  requests_.agree(run);
  if (is_validated) {
    const auto changing = saving_.changing();
    step_.batches().end_epoch(run);
  }
  requests_.agree(run);
  if (asked_.wants_rewind()) return saving_.rewind(run);
  const bool ends_unvalidated = is_validated && !was_due && !asked_.finished().empty();  // finish() at EpochEnd
  if (ends_unvalidated) is_validated = validation_.validate(run);
  requests_.fail_if_asked();
  if (!is_validated) return;
  requests_.swap_if_asked(run);  // before a checkpoint, so that it contains the swap
  saving_.save_in_memory_if_due(run);
  const bool can_go_back = !snapshots_.empty();
  if (const auto weight = can_go_back ? "" : saving_.spoiled_weight(run); !weight.empty()) {
    ending_.diverge(divergence_of(weight));
  } else if (roles_.checkpoint->due(run)) {
    saving_.save_unless_spoiled(run);
  }
}

void TrainingLoop::end(TrainerRun& run) {
  asked_.end();
  outcome_.signal = is_finished(run) ? 0 : ending_.signal();
  outcome_.is_out_of_time = !is_finished(run) && outcome_.signal == 0 && ending_.diverged().empty();
  outcome_.finished = run.step < run.steps ? asked_.finished() : "";
  roles_.ranks.agree(run, "the end of the run", Ranks::Compared::all);
  if (!saving_.is_saved(run)) saving_.save_unless_spoiled(run);
  step_.update_log().conclude(run);
  HostApi::emit(roles_.wiring.bus, Event::RunEnd, run);
  is_running_ = false;
}

}  // namespace vernier
