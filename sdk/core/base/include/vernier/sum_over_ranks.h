// Tensors of the processes of a run. Sums: counts, losses or histograms, of which each rank has those of its share. And
// rows that a loss compares with those of other ranks, as a contrastive loss does.
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

//   const auto [all, first] = gather_over_ranks(embeddings);
//   const auto own = at::arange(first, first + embeddings.size(0), torch::kInt64);
//   return at::cross_entropy_loss(at::mm(embeddings, all.t()), own);
struct GatheredRows {
  torch::Tensor rows;      // the rows of all ranks, in their order
  std::int64_t first = 0;  // the place of this rank's first row
};

// Called in Task::loss, or in what it calls. Returns the rows (dimension 0) of the same micro-batch on all ranks. It is
// differentiable: with it, loss and gradients of several ranks are those of one process that has the whole micro-batch.
// A batch normalisation over all ranks is norm->forward(rows).narrow(0, first, x.size(0)). All ranks must call it as
// often, for tensors that differ in dimension 0 alone. Throws Error if they do not, or if the ranks have different
// numbers of micro-batches. Integers are exact up to 2^53. In a validation, and in a run of one process, it returns its
// argument.
VERNIER_API GatheredRows gather_over_ranks(const torch::Tensor& rows);

}  // namespace vernier
