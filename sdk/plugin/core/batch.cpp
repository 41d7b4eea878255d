#include <ATen/ops/cat.h>
#include <c10/util/StringUtil.h>
#include <torch/types.h>
#include <vernier/batch.h>
#include <vernier/error.h>

#include <limits>

namespace vernier {

Batch Batch::narrow(std::int64_t first, std::int64_t count) const {
  if (first < 0 || count < 0 || count > samples || first > samples - count) {
    throw Error(c10::str("a batch of ", samples, " samples cannot give ", count, " samples from sample ", first, " on"),
                Error::Kind::plugin);
  }
  Batch micro_batch;
  micro_batch.tensors.reserve(tensors.size());
  for (const auto& tensor : tensors) micro_batch.tensors.push_back(tensor.narrow(0, first, count));
  micro_batch.samples = count;
  if (std::ssize(indices) == samples) {
    micro_batch.indices.assign(indices.begin() + first, indices.begin() + first + count);
  }
  // Rounded at both ends the same way, so that the micro-batches' tokens add up to the batch's.
  micro_batch.tokens = samples == 0 ? 0 : tokens * (first + count) / samples - tokens * first / samples;
  return micro_batch;
}

Batch Batch::share(std::int64_t rank, std::int64_t ranks) const {
  // The product in share_begin() has room for as many ranks as an int counts.
  if (ranks > std::numeric_limits<int>::max() || rank < 0 || rank >= ranks)
    throw Error(c10::str("a batch has no share of rank ", rank, " of ", ranks), Error::Kind::plugin);
  const auto first = share_begin(samples, rank, ranks);
  auto share = narrow(first, share_begin(samples, rank + 1, ranks) - first);
  share.is_share = true;
  return share;
}

Batch Batch::concatenated(const std::vector<Batch>& batches) {
  if (batches.size() == 1) return batches.front();
  Batch all;
  const auto& first = batches.at(0).tensors;
  for (const auto& batch : batches) {
    bool fits = batch.tensors.size() == first.size();
    for (std::size_t i = 0; fits && i < first.size(); ++i) {
      fits = batch.tensors[i].dim() > 0 && batch.tensors[i].sizes().slice(1) == first[i].sizes().slice(1) &&
             batch.tensors[i].scalar_type() == first[i].scalar_type();
    }
    if (!fits)
      throw Error(
          "the task's batches cannot be put together for one update: their tensors differ in number, dtype or shape; "
          "override Task::concatenated(), which may fill them up, or set [accumulation] use = \"fixed\"");
    all.samples += batch.samples;
    all.indices.insert(all.indices.end(), batch.indices.begin(), batch.indices.end());
    all.tokens += batch.tokens;
  }
  if (std::ssize(all.indices) != all.samples) all.indices.clear();
  for (std::size_t i = 0; i < first.size(); ++i) {
    std::vector<torch::Tensor> parts;
    for (const auto& batch : batches) parts.push_back(batch.tensors[i]);
    all.tensors.push_back(at::cat(parts));
  }
  return all;
}

Batch Batch::to(torch::Device device) const {
  Batch moved = *this;
  for (auto& tensor : moved.tensors) {
    if (tensor.device() != device) tensor = tensor.to(device, /*non_blocking=*/!device.is_cpu());
  }
  return moved;
}

}  // namespace vernier
