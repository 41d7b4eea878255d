// The significant digits of a step: the step several times, each time with random last bits
// (vernier/lab/random_rounding.h).
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "forward_digits.h"
#include "run/prepared.h"
#include "running_variance.h"

namespace vernier {

struct LayerDigits {
  std::string layer;
  std::optional<double> output;  // none if it has no operator in forward, or the samples took several ways
  std::optional<NumbersDigits> gradient, update;
};

struct StepDigits {
  std::int64_t step = 0;  // counted from 1
  std::string precision;  // the id of the plugin
  std::vector<double> losses;
  double loss_digits = 0;
  std::vector<LayerDigits> layers;        // in the order of the model
  std::vector<OperatorDigits> operators;  // forward's operators in the first micro-batch, in order
  std::optional<OperatorDigits> first;    // the first that loses at least `markedly` digits
  std::optional<OperatorDigits> most;     // the one that loses most
  std::optional<std::string> other_way;   // the operator from which on the samples called others
  std::int64_t skipped = 0, rounded = 0;  // samples whose update was skipped; operators rounded in the last sample
};

constexpr double markedly = 1;  // digits

// Called before a run is sampled. Throws Error for precision/adaptive, which would measure the samples' own noise.
// After it, callback/recheck is switched off: repeats of a step with random bits would differ.
void leave_out_measurements(Wiring& wiring);

// Runs the step that follows run.step `samples` times from the same state. The run is prepared, or has trained up to
// here. It cannot train afterwards. The samples' random numbers depend on the run's seed.
StepDigits digits_of_step(Prepared& prepared, std::int64_t samples, const std::atomic<int>& stop);

// For people, and for programs.
std::string text_of(const StepDigits& digits);
std::string json_of(const StepDigits& digits);

}  // namespace vernier
