// The digits of a whole run: several runs of one configuration, each with random last bits in all operators of all
// steps (vernier/lab/random_rounding.h). Their spread is what rounding alone makes of equal configurations.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "run/prepared.h"

namespace vernier {

struct RunDigits {
  std::string precision;                    // the id of the plugin
  std::vector<std::vector<double>> losses;  // by sample: the losses of its steps, from the first on
  double weights = 0;                       // the digits of all weights together, after the last step

  std::vector<double> losses_of(std::size_t step) const;  // losses of the samples in a step, counted from 0
};

// Trains `samples` runs of so many steps. prepare: called for each, before its first step.
RunDigits digits_of_runs(const std::function<std::unique_ptr<Prepared>()>& prepare, std::int64_t steps,
                         std::int64_t samples, const std::atomic<int>& stop);

// For people, and for programs.
std::string text_of(const RunDigits& digits);
std::string json_of(const RunDigits& digits);

}  // namespace vernier
