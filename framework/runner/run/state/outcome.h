// How a run went, for summary.json.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>

namespace vernier {

// The value of Outcome::signal if no signal ended the run, but the program that the trainer is part of.
constexpr int stopped_by_program = -1;

// A metric of the validations: its last value, and the best finite one where its direction is known.
struct MetricValues {
  std::optional<double> last, best;
};

// The metrics of a run's validations.
struct ValidationOutcome {
  std::optional<double> validation_loss, best_validation_loss;  // last and lowest
  std::map<std::string, MetricValues> measured;                 // the others
};

struct Outcome : ValidationOutcome {
  double seconds = 0;      // duration of the steps, without validation and checkpoints
  std::int64_t steps = 0;  // steps of this process, like seconds, samples and tokens; a resumed run has more
  std::int64_t samples = 0, tokens = 0;
  std::map<std::string, double> times;  // seconds of this process: StepClock::totals()
  std::int64_t micro_batches = 0;
  std::int64_t updates = 0;                    // applied in the whole run, the last step's included
  std::optional<double> loss, best_loss;       // loss: the last step's; best_loss: the lowest of any step
  int signal = 0;                              // the signal that ended the run early, or stopped_by_program, or 0
  bool is_out_of_time = false;                 // the time limit ended the run early
  std::string finished;                        // who ended the run before its last planned step, and why; "": nobody
  std::optional<std::string> error;            // the error that ended the run
  std::string diverged;                        // without an error: what is not finite at the end; "" if nothing is
  std::map<std::string, double> slow_plugins;  // the share of the steps' time that their listeners took
};

}  // namespace vernier
