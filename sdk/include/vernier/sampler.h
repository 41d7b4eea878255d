// In which order a data set's samples are trained on, with a place that can be saved.
#pragma once

#include <torch/types.h>
#include <vernier/abi.h>
#include <vernier/state.h>

#include <cstdint>

namespace vernier {

// Every epoch gives each index from 0 to size - 1 once. The order is fixed by size, seed and the number of the epoch
// alone, on every machine and standard library:
//   a std::mt19937_64, seeded by std::seed_seq{seed's low 32 bits, high, epoch's low, high};
//   for i from size - 1 down to 1, swap the entries i and the high 64 bits of i + 1 times the next draw, where a draw
//   whose product has low bits under 2^64 mod (i + 1) is drawn again, so that every order is equally likely.
// A task keeps one, calls next() in Task::next, and puts save() into its own. One thread at a time.
class VERNIER_API Sampler {
 public:
  enum class Order { sequential, shuffled };

  // Throws Error where size is under 1.
  Sampler(std::int64_t size, std::uint64_t seed, Order order = Order::shuffled);

  // The next indices: int64, 1-dim, on the CPU. As many as `count`, fewer at the end of an epoch, never none. A view of
  // the epoch's order, which stays valid and is not to be written to.
  torch::Tensor next(std::int64_t count);

  // Where the next index comes from.
  std::int64_t epoch() const { return epoch_; }        // 0 in the first
  std::int64_t position() const { return position_; }  // indices of the epoch that were given, under size()
  std::int64_t size() const { return size_; }

  // Loading throws Error, and leaves everything as it was, where size, seed or order are others.
  State save() const;
  void load(const State& state);

 private:
  torch::Tensor make_order() const;

  std::int64_t size_;
  std::uint64_t seed_;
  Order order_;
  std::int64_t epoch_ = 0, position_ = 0;
  torch::Tensor indices_;  // of epoch_; undefined until they are asked for
};

// The option `order`, "shuffled" unless it is given or "sequential". meaning: "of the windows in an epoch".
VERNIER_API Sampler::Order read_order(Options& options, const char* meaning);

}  // namespace vernier
