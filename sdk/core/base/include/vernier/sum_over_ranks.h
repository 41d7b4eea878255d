// Sums over the processes of a run: counts, losses or histograms, of which each rank has those of its share.
//
//   const auto sums = sum_over_ranks(run, torch::tensor({hits, seen}, torch::kFloat64));
//   run.metrics.set("hit_rate", (sums[0] / sums[1]).item<double>());
#pragma once

#include <vernier/run.h>

namespace vernier {

// Returns the sum over all ranks, element by element, with the device, dtype and shape of the tensor. Every rank gets
// the same bits, because the ranks are added in their order. All ranks must call it at the same moment, and not between
// the micro-batches of a step (Control::gather). The host waits for the device. A run of one process gets a copy.
VERNIER_API torch::Tensor sum_over_ranks(const Run& run, const torch::Tensor& of_this_rank);

}  // namespace vernier
