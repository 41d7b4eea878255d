// Processes that have found each other, and what they compute together: c10d with Gloo, as in torch.distributed.
#pragma once

#include <vernier/tensor.h>

#include <chrono>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "place.h"

namespace ddp {

struct Meeting {
  Place place;
  std::chrono::milliseconds timeout{120000};
  std::string interface;      // of the network; empty: the one that leads to rank 0
  bool shares_memory = true;  // if all ranks are on one machine
};

// Main thread only. All ranks call the same functions in the same order. Each throws vernier::Error if a rank does not
// answer within the timeout, or at once if its connection breaks; the text names the rank. No function may be called
// after that.
class Group {
 public:
  // Waits until all ranks are there. Throws vernier::Error::Kind::configuration if ranks disagree about their number,
  // or if a rank is there twice. is_stopping: asked while it waits; returns an empty pointer if it says yes.
  static std::unique_ptr<Group> meet(const Meeting& meeting, const std::function<bool()>& is_stopping);
  ~Group();

  // Begins to sum each tensor over all ranks, in place; contiguous, on the CPU, of equal shapes and dtypes on all
  // ranks. The function that it returns waits.
  std::function<void()> sum(const std::vector<torch::Tensor>& tensors);
  // of_ranks[r]: values of rank r, which replace those of the others. Tensors that have fewer bytes than `bucket`
  // travel together.
  void broadcast(const std::vector<std::vector<torch::Tensor>>& of_ranks, std::int64_t bucket);
  // On these two ranks alone: begins to copy contiguous tensors of `from` into those of `to`. What it returns waits.
  std::function<void()> copy(const std::vector<torch::Tensor>& tensors, std::int64_t from, std::int64_t to);
  std::vector<std::string> gather(const std::string& bytes);

 private:
  struct Parts;
  explicit Group(std::unique_ptr<Parts> parts);
  std::unique_ptr<Parts> parts_;
};

}  // namespace ddp
