// The declarations of the metrics that the trainer sets, and that monitors compute from what it counts.
#pragma once

#include <vernier/metrics.h>

#include <vector>

namespace vernier {

std::vector<MetricInfo> trainer_metrics();

}  // namespace vernier
