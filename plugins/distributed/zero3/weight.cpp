#include "weight.h"

#include <ATen/ops/full.h>
#include <torch/types.h>
#include <vernier/error.h>

#include <algorithm>
#include <cstring>

namespace zero3 {

using ddp::SharedMemory;

namespace {

constexpr std::size_t smallest_part = 16 << 10;  // bytes; to send a smaller weight costs more than to keep it

// Leaves room for float32, because a swap of the precision may change the dtype. Unwritten pages take no memory.
std::size_t room_for(const torch::Tensor& weight) {
  return std::max(weight.nbytes(), static_cast<std::size_t>(weight.numel()) * sizeof(float));
}

// True if the bytes of a tensor are its storage.
bool is_its_storage(const torch::Tensor& weight) {
  return weight.is_non_overlapping_and_dense() && weight.storage_offset() == 0 &&
         weight.storage().nbytes() == weight.nbytes();
}

// A part of the memory that the storage of a tensor holds.
struct Lease {
  std::shared_ptr<SharedMemory> memory;
  std::byte* place;
  std::size_t bytes;
};

}  // namespace

// Vectors stay whole: some kernels of backward read them without the dispatcher.
bool can_be_in_parts(const torch::Tensor& weight) {
  return weight.dim() >= 2 && weight.nbytes() >= smallest_part && is_its_storage(weight);
}

bool open_memory(std::vector<Weight>& weights, ddp::Group& group, std::int64_t rank, std::int64_t ranks) {
  if (!group.shares_memory()) return false;
  std::vector<std::size_t> sizes(static_cast<std::size_t>(ranks), 0), begins;
  const auto page = SharedMemory::page_size();
  for (const auto& weight : weights) {
    auto& size = sizes[static_cast<std::size_t>(weight.owner)];
    begins.push_back(size);
    if (weight.is_in_parts) size += (room_for(weight.tensor) + page - 1) / page * page;
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
    weight.bytes = room_for(weight.tensor);
  }
  return move_to_memory(weights, rank);
}

bool move_to_memory(std::vector<Weight>& weights, std::int64_t rank) {
  for (auto& weight : weights) {
    if (!weight.is_in_parts || weight.owner != rank) continue;
    weight.version = weight.tensor._version();
    const auto& storage = weight.tensor.storage();
    if (storage.data() == weight.place) continue;
    if (!is_its_storage(weight.tensor) || storage.nbytes() > weight.bytes) return false;
    SharedMemory::free(weight.place, weight.bytes);  // the old pages: the weight may have had a larger dtype
    std::memcpy(weight.place, storage.data(), storage.nbytes());
    use_place(weight);
  }
  return true;
}

// A weight that has moved to other memory with the same values does not count as written.
void refuse_written(const std::vector<Weight>& weights, std::int64_t rank) {
  for (const auto& weight : weights) {
    if (!weight.is_in_parts || weight.owner != rank) continue;
    const auto& storage = weight.tensor.storage();
    const bool has_moved = storage.data() != weight.place;
    if (has_moved ? std::memcmp(weight.place, storage.data(), std::min(storage.nbytes(), weight.bytes)) == 0
                  : weight.tensor._version() == weight.version) {
      continue;
    }
    throw vernier::Error(
        "the weight '" + weight.name +
        "' was written after BatchReady, while other ranks could read it; write it only from UpdateDone on, or set "
        "[distributed] shared_memory = false");
  }
}

void use_place(const Weight& weight) {
  const auto end = [](void* held) {
    const std::unique_ptr<Lease> lease(static_cast<Lease*>(held));
    SharedMemory::forget(lease->place, lease->bytes);
  };
  weight.tensor.storage().unsafeGetStorageImpl()->set_data_ptr_noswap(
      {weight.place, new Lease{weight.memory, weight.place, weight.bytes}, end, weight.tensor.device()});
}

}  // namespace zero3
