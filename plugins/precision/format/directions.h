// The direction of gradients beside that of gradients whose products were not rounded.
#pragma once

#include <vernier/run.h>

#include <cmath>
#include <map>
#include <set>
#include <string>

namespace formats {

// The sums of the products of two gradients, rounded and exact, with each other and with themselves.
struct Angle {
  double both = 0, rounded = 0, exact = 0;
  double cosine() const { return both / std::sqrt(rounded * exact); }
  // Returns the norm of the exact gradient over that of the difference.
  double over_noise() const {
    const double noise = rounded + exact - 2 * both;
    return noise > 0 ? std::sqrt(exact / noise) : HUGE_VAL;
  }
};

// Called at GradientsReady of a plugin that wanted reruns. Computes the gradients of the step again while `is_exact` is
// true. Returns how both gradients of each layer lie. Empty where the trainer cannot do that.
std::map<std::string, Angle> directions_of(vernier::Run& run, const std::set<std::string>& layers, bool& is_exact);

}  // namespace formats
