// Chooses the candidates that an advice measures, and those that it names.
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "axes.h"

namespace vernier {

struct Measured {
  Choice choice;
  std::string trouble;         // why it did not train: what vernier said; "" if it did
  std::vector<double> speeds;  // samples per second of each round: the median of its steps
  double peak_memory = 0;      // bytes, the highest of all rounds
  std::vector<double> losses;  // losses in the first round, from step 1
  std::int64_t steps = 0;      // steps of all rounds
  std::int64_t overflows = 0, skipped = 0;
  double micro_batch = 0;  // samples
  std::string emulated;

  double speed() const;  // the highest of `speeds`: other work on the machine only slows a round down; 0 without any
};

std::string in_mb(double bytes);  // "812 MB"

struct Limits {
  double memory = 0;       // bytes; 0: none
  double loss_gap = 0.01;  // see allowed_gap()
};

// How far the candidate's loss is above float32's: the mean over the second half of the steps that both have trained,
// on the same batches from the same weights. Nothing with fewer than 4 steps.
std::optional<double> loss_gap(const Measured& candidate, const Measured& float32);
// loss_gap times float32's first loss, because a loss that falls to nearly 0 is not a measure.
double allowed_gap(const Limits& limits, const Measured& float32);

// Why a candidate is not advice: it did not train, was emulated, needs too much memory, or its loss goes away from
// float32's. "" where it may be.
std::string objection_to(const Measured& candidate, const Measured& float32, const Limits& limits);

// Measures a candidate for one round and adds what it saw. Called again for a further round of the same.
using Measurer = std::function<void(Measured&)>;
// Returns true if there is time for that many more rounds of a candidate.
using HasTime = std::function<bool(std::size_t rounds)>;

struct Found {
  std::vector<Measured> measured;     // the first is as written
  std::optional<std::size_t> advice;  // its place in `measured`; none where each has an objection
  std::size_t float32 = 0;            // likewise
  std::vector<std::string> left_out;  // names of options for which there was no time
};

// 1. Measures float32 and another precision, however little time there is, and then each option of each axis alone.
// 2. Predicts every combination: each option multiplies speed and memory by what it does alone. Measures the one with
// the best estimate, as long as one is estimated above what the fastest has shown. What a combination needs beyond its
// estimate counts as memory that no option changes.
// 3. Measures the fastest three and the written one again, in turn, while there is time. The advice is the fastest
// without an objection; of those within 2 % of it, the one that changes least.
// written: measured once already.
Found search(const std::vector<Axis>& axes, Measured written, const Limits& limits, const Measurer& measure,
             const HasTime& has_time);

}  // namespace vernier
