// How many bytes a training step holds, and for what: not estimated, but followed in LibTorch's allocators.
//
//   vernier::MemoryLedger ledger(*model);
//   ledger.begin_forward();
//   auto loss = criterion(model->forward(input), target);
//   ledger.begin_backward();
//   loss.backward();
//   ledger.begin_update();
//   optimizer.step();
//   std::cout << vernier::memory_table({{"bytes", ledger.stop()}});
#pragma once

#include <torch/nn/module.h>
#include <vernier/layers.h>
#include <vernier/memory.h>

#include <memory>
#include <string>
#include <string_view>
#include <unordered_set>
#include <utility>
#include <vector>

namespace vernier {

struct VERNIER_API MemoryUse {
  struct Part {
    std::string name;
    std::int64_t bytes;
  };
  // weights        parameters of the model            buffers       its buffers
  // masters        given to the constructor           gradients     of both, at stop()
  // weight copies  made in forward of weights alone (a cast) and alive when it ended
  // activations    the rest that was alive when forward ended and gone when backward ended: saved for backward
  // optimizer      what hold() was given as such; else allocated since begin_update() and alive at stop(): all of its
  //                state where this was its first step
  // other          allocated before begin_update() and alive at stop(): the loss, outputs that somebody keeps
  // and what hold() named. Those without a byte are left out.
  std::vector<Part> parts;
  // The activations by the layer whose weight was last an operator's argument when they were made, in the order of the
  // model: an activation function's belong to the layer before it; "" for those before the first layer.
  std::vector<Part> layers;
  std::int64_t peak = 0;  // most bytes at one moment: all that was there and is counted, and all that was made since
  std::string peak_in;    // forward, backward, update
  std::int64_t bytes(std::string_view part) const;  // 0 where there is none
};

// Follows what is allocated on the model's device by the thread that calls it and by the backward passes that it starts.
// Storage that tensors share counts once. Sizes are the allocator's: what was asked for on a CPU, rounded up to 512 on a
// GPU. What libraries allocate for themselves (oneDNN's scratch) nobody sees. Before begin_forward() and after stop() it
// costs nothing, between them a few microseconds an operator. The calls must be made on one thread.
class VERNIER_API MemoryLedger {
 public:
  // masters: what the optimizer changes where that is not the model's parameters.
  explicit MemoryLedger(const torch::nn::Module& model, std::vector<torch::Tensor> masters = {});
  ~MemoryLedger();
  MemoryLedger(const MemoryLedger&) = delete;
  MemoryLedger& operator=(const MemoryLedger&) = delete;

  // Counts tensors that are there already, under a name: the batch, the state of an optimizer. Before begin_forward().
  void hold(const std::string& part, const std::vector<torch::Tensor>& tensors);
  void hold(const std::string& part, std::int64_t bytes);

  // Where a batch is trained in pieces, these two come once for each; the piece with most activations is told. Throws
  // Error where a profiler or another ledger is following.
  void begin_forward();
  void begin_backward();
  // May be left out, where nothing is updated, and may come alone, to learn what an optimizer's first step allocates.
  void begin_update();
  MemoryUse stop();

 private:
  class Followed;
  struct Guards;
  void follow();
  void end_backward();

  const torch::nn::Module& model_;
  std::vector<torch::Tensor> masters_;
  Layers layers_;
  MemoryUse use_;
  std::unordered_set<const c10::StorageImpl*> counted_;
  std::int64_t gradients_before_ = 0;
  std::shared_ptr<Followed> followed_;
  std::unique_ptr<Guards> guards_;
};

// "h.0.mlp" and "h.1.mlp" are both "h.*.mlp": how layers that are alike are told in one line, and matched by one rule.
VERNIER_API std::string folded(const std::string& layer);

// A table for people: the parts, the layers with most activations (like ones in one row: "h.*.mlp.c_fc x4") and the
// peak; a column for each use with its title. rows: of layers; what is beyond them is summed up.
VERNIER_API std::string memory_table(const std::vector<std::pair<std::string, MemoryUse>>& columns, std::size_t rows = 12);

}  // namespace vernier
