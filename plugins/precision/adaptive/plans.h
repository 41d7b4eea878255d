// The policies between which precision/adaptive chooses: plain tables of [precision].
#pragma once

#include <vernier/mixed_precision.h>

#include <deque>
#include <memory>
#include <string>
#include <vector>

#include "candidates.h"

namespace adaptive {

// An operation with the weight of one layer, or an operation without a layer.
struct Site {
  std::string layer, op;
  std::vector<Measured> measured = {};  // by Choices::uses
};
using Sites = std::deque<Site>;  // references to its elements stay valid

// The facts that all plans share.
struct Choices {
  std::vector<Use> uses = {Use::fp32};
  std::size_t named = 1;  // the first of `uses`, which have a plan each
  vernier::Table kept;    // options that the user gave, for every table
  vernier::Array rules;   // the user's, which come first
  double error_budget, min_gain;
};

// A policy, and the time of forward and backward under it.
struct Plan {
  std::string name;
  Use base;                              // dtype of operations that no rule matches
  std::vector<std::size_t> chosen = {};  // by site: the place of its dtype in Choices::uses; 0 is float32
  vernier::Table table = {};
  std::unique_ptr<vernier::MixedPrecision> policy = nullptr;
  std::vector<double> seconds = {};  // by round
  std::string failure = {};          // why it computes no gradients; "": it does

  double median() const;
  std::string toml() const;
};

// Returns float32 first, then each dtype wherever it keeps to the error budget, and then the fastest dtype of each
// site, if that is another plan. A dtype that no site may use has no plan.
std::vector<Plan> plans_for(const Sites& sites, const Choices& choices);

// Two plans' times, divided round by round: the median, and bounds that contain it about 19 times of 20.
struct Ratio {
  double low, median, high;
  bool is_less(double gain) const { return median < 1 - gain && high < std::max(1.0, 1 - gain); }
  bool is_clear(double gain) const { return is_less(gain) || low > 1 - gain; }
};
Ratio ratio(const Plan& plan, const Plan& to);

// Returns the index of the fastest plan. Of two, the later one has to save min_gain, and more than the noise.
std::size_t fastest(const std::vector<Plan>& plans, double min_gain);

}  // namespace adaptive
