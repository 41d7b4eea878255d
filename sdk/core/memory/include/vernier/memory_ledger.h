// Measures how many bytes a training step holds, and for what, by following LibTorch's allocators.
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

#include <vernier/layers.h>
#include <vernier/memory.h>
#include <vernier/tensor.h>

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
  // The bytes by purpose, without parts of 0 bytes. The names given to hold() come too.
  //   weights        the model's parameters
  //   buffers        the model's buffers
  //   masters        the tensors given to the constructor
  //   gradients      those of weights and masters, at stop()
  //   weight copies  made in forward from weights alone (a cast), and alive when forward ended
  //   activations    other tensors that were alive when forward ended and freed when backward ended
  //   optimizer      given to hold() under this name; otherwise allocated since begin_update() and alive at stop(),
  //                  which is the whole state if this was the optimizer's first step
  //   other          allocated before begin_update() and alive at stop(): the loss, outputs that are still referenced.
  //                  On a GPU also what its allocator had given to others at the first begin: workspaces of cuBLAS
  std::vector<Part> parts;
  // The activations by layer, in the order of the model. A tensor belongs to the last layer whose weight was used
  // before it was made, so an activation function counts to the layer before it. "": before the first layer.
  std::vector<Part> layers;
  std::int64_t peak = 0;  // the most bytes at one moment: those counted at the beginning, and all made since
  std::string peak_in;    // "forward", "backward" or "update"
  std::int64_t bytes(std::string_view part) const;  // 0 for an unknown part
};

// Follows allocations on the model's device by the calling thread and by the backward passes that it starts. Storage
// that tensors share counts once. Sizes are those of Allocated (memory.h); what libraries allocate themselves (oneDNN's
// scratch) is not seen. From the first begin to stop() it costs a few microseconds an operator, otherwise nothing. Make
// all calls on one thread. The model must outlive the ledger.
class VERNIER_API MemoryLedger {
 public:
  // masters: the tensors that the optimizer changes, if these are not the model's parameters.
  explicit MemoryLedger(const torch::nn::Module& model, std::vector<torch::Tensor> masters = {});
  ~MemoryLedger();
  MemoryLedger(const MemoryLedger&) = delete;
  MemoryLedger& operator=(const MemoryLedger&) = delete;

  // Counts existing tensors under a name: the batch, the state of an optimizer. Call it before begin_forward().
  void hold(const std::string& part, const std::vector<torch::Tensor>& tensors);
  void hold(const std::string& part, std::int64_t bytes);

  static bool can_follow();  // false while a profiler or another ledger follows the allocators of this thread
  // Optional: no other can follow them from now on; counts nothing. It and the first begin throw Error if one does.
  void follow();
  // Call both once for each micro-batch; the result has the activations of the largest one.
  void begin_forward();
  void begin_backward();
  // Optional. Call it alone to measure what an optimizer's first step allocates.
  void begin_update();
  MemoryUse stop();  // ends the measurement; throws Error if none has begun

 private:
  class Followed;
  struct Guards;
  void begin();
  void end_backward();

  const torch::nn::Module& model_;
  std::vector<torch::Tensor> masters_;
  Layers layers_;
  MemoryUse use_;
  std::unordered_set<const c10::StorageImpl*> counted_;
  std::int64_t gradients_before_ = 0;
  std::int64_t allocated_before_ = 0;  // on a GPU: all that its allocator had given away
  std::shared_ptr<Followed> followed_;
  std::unique_ptr<Guards> guards_;
};

// Replaces the numbers in a layer's name: "h.0.mlp" and "h.1.mlp" both become "h.*.mlp", the pattern that matches them.
VERNIER_API std::string folded(const std::string& layer);

// Returns a table for people, with a column and its title for each use. It lists the parts, the layers with the most
// activations, and the peak. Similar layers share a row: "h.*.mlp.c_fc x4". `rows` layers are listed, the rest is
// summed.
VERNIER_API std::string memory_table(const std::vector<std::pair<std::string, MemoryUse>>& columns,
                                     std::size_t rows = 12);

}  // namespace vernier
