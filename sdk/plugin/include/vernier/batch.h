// The data that one update trains on, or one micro-batch of it.
#pragma once

#include <vernier/abi.h>
#include <vernier/tensor.h>

#include <cstdint>
#include <optional>
#include <vector>

namespace vernier {

// Dimension 0 of every tensor is the sample. The task defines what each tensor means: Task::next makes them and
// Task::loss reads them.
struct VERNIER_API Batch {
  std::vector<torch::Tensor> tensors;
  std::int64_t samples = 0;
  std::int64_t tokens = 0;  // the number of all tokens, for throughput; 0 if the task counts none
  // The weight of this micro-batch's mean loss in the loss of the batch. The accumulation plugin sets it. Without a
  // value, the weight is `samples`.
  std::optional<double> weight = {};
  // Set by a task that has loaded only this rank's share of the batch. Otherwise the trainer takes share().
  bool is_share = false;
  // The place of each sample in the task's data set, in the order of dimension 0: Task::where names them. Empty if the
  // task has none.
  std::vector<std::int64_t> indices = {};

  // Returns a view of `count` samples from `first` on. `tokens` is divided in proportion to the samples.
  Batch narrow(std::int64_t first, std::int64_t count) const;
  // Returns what one of several ranks trains on. The shares of all ranks are the batch in order. Their sizes differ by
  // one sample at most; the first ranks have the larger ones, and the last may have none.
  Batch share(std::int64_t rank, std::int64_t ranks) const;
  // The number of samples before a rank's share, for rank = 0 … ranks.
  static std::int64_t share_begin(std::int64_t samples, std::int64_t rank, std::int64_t ranks) {
    return (samples * rank + ranks - 1) / ranks;
  }
  // Returns the samples of all batches in order. Throws Error if their tensors differ in number, dtype or the shape of
  // a sample.
  static Batch concatenated(const std::vector<Batch>& batches);
  // Returns the batch on a device. Tensors that are already there are not copied. Copies to a GPU are asynchronous.
  Batch to(torch::Device device) const;
};

}  // namespace vernier
