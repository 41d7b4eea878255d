// What one update trains on, or a piece of it.
#pragma once

#include <torch/types.h>
#include <vernier/abi.h>

#include <cstdint>
#include <optional>
#include <vector>

namespace vernier {

// Dimension 0 of every tensor is the sample; what each tensor means is between Task::next and Task::loss.
struct VERNIER_API Batch {
  std::vector<torch::Tensor> tensors;
  std::int64_t samples = 0;
  std::int64_t tokens = 0;  // all of them, for the rate that is shown; 0 where the task counts none
  // How much a piece's mean loss counts among the batch's pieces: its samples, unless the accumulation says so.
  std::optional<double> weight = {};

  // A view of `count` samples from `first` on; tokens are shared out evenly.
  Batch narrow(std::int64_t first, std::int64_t count) const;
  // The samples of all, one batch after the other. Throws Error where their tensors do not fit together.
  static Batch concatenated(const std::vector<Batch>& batches);
  // The same on a device; tensors that are there already are not copied.
  Batch to(torch::Device device) const;
};

}  // namespace vernier
