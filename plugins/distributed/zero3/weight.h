// One weight of a model in parts, and the memory of its owner that the ranks of a machine share.
#pragma once

#include <vernier/tensor.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "../ddp/group.h"
#include "../ddp/shared_memory.h"

namespace zero3 {

struct Weight {
  torch::Tensor tensor;  // the model's
  std::int64_t owner = 0;
  bool is_in_parts = false;
  int readers = 0;                            // operators that run now and have waited for it
  std::shared_ptr<ddp::SharedMemory> memory;  // memory of its owner; null where the ranks share none
  std::byte* place = nullptr;                 // begin of the weight in that memory
  std::size_t bytes = 0;                      // size of the weight there
};

// True if a weight may be without memory on a rank.
bool can_be_in_parts(const torch::Tensor& weight);
// Each rank makes memory for the weights in parts that it owns, and opens that of the others. Called by all ranks.
// Returns false on all of them if one cannot, and then no weight has a place.
bool open_memory(std::vector<Weight>& weights, ddp::Group& group, std::int64_t rank, std::int64_t ranks);
// Copies each weight of this rank that is not at its place to it. Returns false if one has another form than when the
// memory was opened.
bool move_to_memory(const std::vector<Weight>& weights, std::int64_t rank);
// The tensor of a weight gets the memory at its place.
void use_place(const Weight& weight);

}  // namespace zero3
