// Shared by callbacks that act on a metric of the validations.
#pragma once

#include <vernier/error.h>
#include <vernier/run.h>

#include <string>

// At Validated: the metric's value, a host sync where it is a tensor. Throws Error if the validation has not set it.
inline double measured(const vernier::Run& run, const std::string& metric) {
  if (const auto value = run.metrics.value(metric.c_str())) return *value;
  std::string others;
  for (const auto* entry : run.metrics.set_now()) others += (others.empty() ? "" : ", ") + entry->name;
  vernier::refuse("`metric` is \"" + metric + "\", which this run's validation does not measure; it measures " +
                  (others.empty() ? "nothing" : others));
}
