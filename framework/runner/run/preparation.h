// Done once, before the first step: plugins are prepared, the model is moved to its device, and its parameters are
// named.
#pragma once

#include <functional>

#include "step.h"

namespace vernier {

// Changes the new model before anything is made from it; may be null.
using InitModel = std::function<void(torch::nn::Module&)>;

// Sets run.steps from `epochs` unless that is 0. Returns early if a signal came.
void prepare_plugins(Parts& parts, Step& step, TrainerRun& run, std::int64_t epochs, const InitModel& init);

}  // namespace vernier
