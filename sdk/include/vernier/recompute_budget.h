// Activation checkpointing within a budget: of a network of like blocks the fewest are computed again in backward that
// keep its activations below some bytes, as a first forward pass has measured them.
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

#include <torch/types.h>
#include <vernier/activation_checkpoint.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>

namespace vernier {

// What a forward pass leaves for backward.
struct ForwardBytes {
  std::int64_t blocks = 0;      // how many
  std::int64_t kept = 0;        // bytes of a block
  std::int64_t recomputed = 0;  // bytes of one that is computed again: its output, and what is kept of it
  std::int64_t outside = 0;     // bytes of all else: embeddings, head, loss
};

// The most bytes at one moment where the first `count` blocks are computed again: backward comes to them last, when the
// blocks behind have given theirs back, and the one that is computed again finds room there. So the last block is
// better kept: it would be computed again first, when all is full.
VERNIER_API std::int64_t peak_activations(const ForwardBytes& bytes, std::int64_t count);

// The least count whose peak is not above the budget; nothing where there is none. No other choice of blocks has fewer.
VERNIER_API std::optional<std::int64_t> blocks_to_recompute(const ForwardBytes& bytes, std::int64_t budget);

// Measures a forward pass while it trains on it, with all blocks but the last computed again, and has it said how many
// are from the next on. Losses and gradients have the same bits, however many (activation_checkpoint.h). On one thread.
class VERNIER_API BudgetedBlocks {
 public:
  using Choose = std::function<std::int64_t(const ForwardBytes&)>;
  using Block = std::function<torch::Tensor(const torch::Tensor&)>;
  // choose: given what was measured, how many are computed again. What it throws passes through forward().
  BudgetedBlocks(std::int64_t blocks, Keep keep, Choose choose);

  // Calls body, which calls block() for each block in its order. size: what activations grow with, as samples: a pass
  // that is larger than those before is measured, where gradients are recorded. What is measured is all that the body
  // leaves allocated on the device, with autocast's copies of weights. A ledger or profiler around it sees it as well.
  torch::Tensor forward(std::int64_t size, torch::Device device, const std::function<torch::Tensor()>& body);
  // function: of checkpoint(), with what it captures.
  torch::Tensor block(std::int64_t index, const Block& function, const torch::Tensor& input);
  // Measures the next pass, for another precision has other bytes.
  void forget() { size_ = 0; }

 private:
  class Meter;
  std::int64_t blocks_, count_;
  Keep keep_;
  Choose choose_;
  std::int64_t size_ = 0;         // the largest that was measured
  std::shared_ptr<Meter> meter_;  // while a pass is measured
  ForwardBytes bytes_;
};

}  // namespace vernier
