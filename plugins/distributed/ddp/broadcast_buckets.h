// Tensors of one rank that are sent together.
#pragma once

#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>
#include <torch/types.h>

#include <algorithm>
#include <cstdint>
#include <utility>
#include <vector>

namespace ddp {

// As bytes, since Gloo does not know each dtype.
inline torch::Tensor as_bytes(const torch::Tensor& tensor) {
  return tensor.contiguous().view(-1).view(torch::kUInt8);
}

struct BroadcastBucket {
  std::int64_t from;  // the rank
  std::vector<torch::Tensor> tensors;
  std::int64_t size = 0;
  torch::Tensor bytes;

  // A single tensor is sent from its own memory. over: the device from which all are sent.
  void pack(bool is_sender, torch::Device over) {
    if (tensors.size() == 1 && tensors[0].is_contiguous() && tensors[0].device() == over) {
      bytes = as_bytes(tensors[0]);
    } else if (is_sender) {
      std::vector<torch::Tensor> parts;
      for (const auto& tensor : tensors) parts.push_back(as_bytes(tensor));
      bytes = at::cat(parts).to(over);
    } else {
      bytes = at::empty({size}, torch::dtype(torch::kUInt8).device(over));
    }
  }

  void unpack() const {
    std::int64_t begin = 0;
    for (const auto& tensor : tensors) {
      const auto count = static_cast<std::int64_t>(tensor.nbytes());
      if (bytes.is_alias_of(tensor)) {
        tensor.unsafeGetTensorImpl()->bump_version();
      } else {
        auto part = bytes.narrow(0, begin, count);
        if (begin % tensor.element_size() != 0) part = part.clone();  // a view would not be aligned
        tensor.copy_(part.view(tensor.scalar_type()).view(tensor.sizes()));
      }
      begin += count;
    }
  }
};

// of_ranks: tensors of each rank. The same on all ranks. Buckets of different ranks alternate, so that all send at
// once.
inline std::vector<BroadcastBucket> broadcast_buckets_of(const std::vector<std::vector<torch::Tensor>>& of_ranks,
                                                         std::int64_t most_bytes) {
  std::vector<std::vector<BroadcastBucket>> buckets(of_ranks.size());
  std::size_t most = 0;
  for (std::size_t r = 0; r < of_ranks.size(); ++r) {
    auto& own = buckets[r];
    for (const auto& tensor : of_ranks[r]) {
      const auto size = static_cast<std::int64_t>(tensor.nbytes());
      if (size == 0) continue;
      if (own.empty() || own.back().size + size > most_bytes) own.push_back({static_cast<std::int64_t>(r), {}, 0, {}});
      own.back().tensors.push_back(tensor);
      own.back().size += size;
    }
    most = std::max(most, own.size());
  }
  std::vector<BroadcastBucket> all;
  for (std::size_t i = 0; i < most; ++i) {
    for (auto& own : buckets) {
      if (i < own.size()) all.push_back(std::move(own[i]));
    }
  }
  return all;
}

}  // namespace ddp
