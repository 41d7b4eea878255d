// One weight of a model in parts, and the memory of its owner that the ranks of a machine share.
#pragma once

#include <vernier/tensor.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "../ddp/group.h"
#include "../ddp/shared_memory.h"

namespace zero3 {

struct Weight {
  std::string name;
  torch::Tensor tensor;  // the model's
  std::int64_t owner = 0;
  bool is_in_parts = false;
  int readers = 0;                            // operators that run now and have waited for it
  std::shared_ptr<ddp::SharedMemory> memory;  // memory of its owner; null where the ranks share none
  std::byte* place = nullptr;                 // begin of the weight in that memory
  std::size_t bytes = 0;                      // room for it there: for float32, or more
  std::int64_t version = 0;                   // version of the tensor when it was last at its place
};

// True if a weight may be without memory on a rank.
bool can_be_in_parts(const torch::Tensor& weight);
// Each rank makes memory for the weights in parts that it owns, and opens that of the others. Called by all ranks.
// Returns false on all of them if one cannot, and then no weight has a place.
bool open_memory(std::vector<Weight>& weights, ddp::Group& group, std::int64_t rank, std::int64_t ranks);
// Moves each weight that this rank owns to its place, unless it is there. Returns false if one does not fit.
bool move_to_memory(std::vector<Weight>& weights, std::int64_t rank);
// Throws vernier::Error with the name of a weight of this rank that was written since move_to_memory().
void refuse_written(const std::vector<Weight>& weights, std::int64_t rank);
// The tensor of a weight gets the memory at its place, which counts as memory of this process until the tensor gets
// other memory.
void use_place(const Weight& weight);

}  // namespace zero3
