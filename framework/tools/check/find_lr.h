// The learning-rate range test of `vernier check --find-lr` (Smith, Cyclical Learning Rates, WACV 2017): trains a model
// for a few steps, each at a higher rate, and looks where its loss falls fastest.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "run/training_loop.h"

namespace vernier {

struct RateTest {
  struct Point {
    double rate, loss;  // loss: smoothed, as fastai does it
  };
  std::vector<Point> points;
  std::optional<double> suggestion;  // the rate at which the loss falls fastest; nothing where it falls at none
  bool has_diverged = false;         // the test ended because of that
};

// Trains from a ten-thousandth of the optimizer's learning rate to a thousand times as much, in 100 steps, or until the
// loss is four times its lowest value. Schedules have no effect. The run must be prepared, without monitors and with
// checkpoint/none, and is of no use afterwards. What callbacks write goes into a folder that is removed. Throws Error
// if the optimizer reports no learning rate, or 0.
RateTest test_rates(TrainingLoop& trainer, Wiring& wiring, TrainerRun& run);

// The rate at which the losses of single batches fall fastest: the slope over a fifth of them, if it is clear beside
// their scatter. Nothing where it is not, and of fewer than 25 points.
std::optional<double> steepest(const std::vector<RateTest::Point>& points);

// Loss over rate, in lines of text, with the suggestion.
std::string plot(const RateTest& test);

}  // namespace vernier
