// Activation checkpointing within a memory budget, for a network of equal blocks. A first forward pass measures the
// blocks. Then backward recomputes as few blocks as possible so that the activations stay within the budget.
//
//   vernier::BudgetedBlocks again(blocks.size(), vernier::Keep::inputs, [](const vernier::ForwardBytes& bytes) {
//     return vernier::blocks_to_recompute(bytes, 2'000'000'000).value();
//   });
//   auto loss = again.forward(batch.size(0), device, [&] {
//     for (std::size_t i = 0; i < blocks.size(); ++i)
//       x = again.block(i, [&, i](const torch::Tensor& y) { return blocks[i]->forward(y); }, x);
//     return criterion(head(x), target);
//   });
#pragma once

#include <vernier/activation_checkpoint.h>
#include <vernier/tensor.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>

namespace vernier {

// The memory that a forward pass keeps for backward.
struct ForwardBytes {
  std::int64_t blocks = 0;      // number of blocks
  std::int64_t kept = 0;        // bytes of a block that is not recomputed
  std::int64_t recomputed = 0;  // bytes of a block that is recomputed: its output, and what Keep selects
  std::int64_t outside = 0;     // bytes outside of the blocks: embeddings, head, loss
};

// Returns the most bytes at one moment if the first `count` blocks are recomputed. Backward reaches these last, when
// the later blocks have freed their memory, so a recomputed block fits there. The last block is better kept: it would
// be recomputed first, while memory is full.
VERNIER_API std::int64_t peak_activations(const ForwardBytes& bytes, std::int64_t count);

// Returns the smallest count whose peak is within the budget, or nothing if there is none. No other choice of blocks
// recomputes fewer.
VERNIER_API std::optional<std::int64_t> blocks_to_recompute(const ForwardBytes& bytes, std::int64_t budget);

// Measures a forward pass during training, in which all blocks but the last are recomputed. Then asks `choose` how many
// blocks to recompute from the next pass on. Losses and gradients have the same bits for any number
// (activation_checkpoint.h). Use it on one thread.
class VERNIER_API BudgetedBlocks {
 public:
  using Choose = std::function<std::int64_t(const ForwardBytes&)>;
  using Block = std::function<torch::Tensor(const torch::Tensor&)>;
  // choose: returns the number of blocks to recompute. Its exceptions pass through forward().
  BudgetedBlocks(std::int64_t blocks, Keep keep, Choose choose);

  // Calls body, which must call block() for each block in order. size: a number that activations grow with, such as the
  // samples. A pass with a larger size than all before is measured, if gradients are recorded. The measurement includes
  // all memory that body leaves allocated on the device, also autocast's copies of weights. An outer ledger or profiler
  // sees this memory as well.
  torch::Tensor forward(std::int64_t size, torch::Device device, const std::function<torch::Tensor()>& body);
  // function: as for checkpoint(), which keeps its captures alive.
  torch::Tensor block(std::int64_t index, const Block& function, const torch::Tensor& input);
  // Makes the next pass a measured one. Call it when the precision changes, which changes the bytes.
  void forget() { size_ = 0; }

 private:
  class Meter;
  std::int64_t blocks_, count_;
  Keep keep_;
  Choose choose_;
  std::int64_t size_ = 0;         // the largest measured size
  std::shared_ptr<Meter> meter_;  // while a pass is measured
  ForwardBytes bytes_;
};

}  // namespace vernier
