// Done once before the first step: plugins are prepared, the model is moved, and its parameters are named.
#pragma once

#include <functional>

#include "saving.h"

namespace vernier {

// The metrics that the trainer sets, and that monitors compute from what it counts.
std::vector<MetricInfo> trainer_metrics();

// Changes the new model before anything is made from it; may be null.
using InitModel = std::function<void(torch::nn::Module&)>;

// Sets run.steps from `epochs` unless that is 0. trains: false: a trained model is only used, so what only a training
// needs is not checked. Returns early if a signal came.
void prepare_plugins(Roles& roles, Step& step, const Saving& saving, TrainerRun& run, std::int64_t epochs,
                     const InitModel& init, bool trains);

}  // namespace vernier
