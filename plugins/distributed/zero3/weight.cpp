#include "weight.h"

#include <ATen/ops/full.h>
#include <torch/types.h>
#include <vernier/error.h>

#include <cstring>
#include <string>

namespace zero3 {

using ddp::SharedMemory;

namespace {

constexpr std::size_t smallest_part = 16 << 10;  // bytes: below, a message costs more than the memory

}  // namespace

// Vectors are read by kernels of backward that LibTorch's dispatcher does not call.
bool can_be_in_parts(const torch::Tensor& weight) {
  return weight.dim() >= 2 && weight.nbytes() >= smallest_part && weight.is_non_overlapping_and_dense() &&
         weight.storage_offset() == 0 && weight.storage().nbytes() == weight.nbytes();
}

bool open_memory(std::vector<Weight>& weights, ddp::Group& group, std::int64_t rank, std::int64_t ranks) {
  if (!group.shares_memory()) return false;
  std::vector<std::size_t> sizes(static_cast<std::size_t>(ranks), 0), begins;
  const auto page = SharedMemory::page_size();
  for (const auto& weight : weights) {
    auto& size = sizes[static_cast<std::size_t>(weight.owner)];
    begins.push_back(size);
    if (weight.is_in_parts) size += (weight.tensor.nbytes() + page - 1) / page * page;
  }
  std::vector<std::shared_ptr<SharedMemory>> all(sizes.size());
  auto& own = all[static_cast<std::size_t>(rank)];
  bool is_open = true;
  const auto open = [&](auto make) {
    try {
      make();
    } catch (const vernier::Error&) {  // weights are sent instead
      is_open = false;
    }
  };
  open([&] { own = std::make_shared<SharedMemory>(sizes[static_cast<std::size_t>(rank)]); });
  const auto names = group.gather(own ? own->name() : "");
  open([&] {
    for (std::size_t r = 0; r < all.size(); ++r) {
      if (!all[r]) all[r] = std::make_shared<SharedMemory>(names[r], /*keeps_writes=*/true);
    }
  });
  const auto able = at::full({1}, is_open ? 1 : 0, torch::kFloat64);
  group.sum({able})();
  if (able.item<double>() != static_cast<double>(ranks)) return false;
  for (std::size_t i = 0; i < weights.size(); ++i) {
    auto& weight = weights[i];
    if (!weight.is_in_parts) continue;
    weight.memory = all[static_cast<std::size_t>(weight.owner)];
    weight.place = weight.memory->data() + begins[i];
    weight.bytes = weight.tensor.nbytes();
  }
  return move_to_memory(weights, rank);
}

bool move_to_memory(const std::vector<Weight>& weights, std::int64_t rank) {
  for (const auto& weight : weights) {
    const auto& storage = weight.tensor.storage();
    if (!weight.is_in_parts || weight.owner != rank || storage.data() == weight.place) continue;
    if (!can_be_in_parts(weight.tensor) || storage.nbytes() != weight.bytes) return false;
    std::memcpy(weight.place, storage.data(), weight.bytes);
    use_place(weight);
  }
  return true;
}

// The storage keeps the memory alive.
void use_place(const Weight& weight) {
  using Memory = std::shared_ptr<SharedMemory>;
  weight.tensor.storage().unsafeGetStorageImpl()->set_data_ptr_noswap(
      {weight.place, new Memory(weight.memory), [](void* memory) { delete static_cast<Memory*>(memory); },
       weight.tensor.device()});
}

}  // namespace zero3
