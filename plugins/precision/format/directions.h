// The direction of gradients beside that of gradients whose products were not rounded.
#pragma once

#include <vernier/run.h>

#include <map>
#include <set>
#include <string>

namespace formats {

// Called at GradientsReady of a plugin that wanted reruns. Computes the gradients of the step again while `is_exact` is
// true. Returns the cosine of both gradients of each layer. Empty where the trainer cannot do that.
std::map<std::string, double> directions_of(vernier::Run& run, const std::set<std::string>& layers, bool& is_exact);

}  // namespace formats
