// The order in which a data set's samples are trained on, with a position that can be saved.
#pragma once

#include <vernier/abi.h>
#include <vernier/state.h>
#include <vernier/tensor.h>

#include <cstdint>
#include <limits>
#include <vector>

namespace vernier {

// Task::batches_per_epoch() of data that never end: all steps are in one epoch.
constexpr std::int64_t endless = std::numeric_limits<std::int64_t>::max();

// Each epoch has every index from 0 to size - 1 once. The order depends only on size, seed and epoch; it is the same on
// every machine and with every standard library:
//   A std::mt19937_64 is seeded by std::seed_seq{seed's low 32 bits, high, epoch's low, high}.
//   For i from size - 1 down to 1, entry i is swapped with entry j, the high 64 bits of (i + 1) * the next draw.
//   A draw whose product has low 64 bits under 2^64 mod (i + 1) is repeated, so that every order is equally likely.
// A shuffled order of more than 2^24 indices takes no memory. The first 8 draws of that generator are the keys:
//   A place has b bits, the fewest that hold size - 1. `low` is the lower half of them, rounded down, `high` the rest.
//   For each pair of keys: high ^= m(low ^ first), then low ^= m(high ^ second), each cut to its bits. m is the
//   finalizer of SplitMix64. If the result is not below size, it is put in again; else it is the index at that place.
// by_shard: the shards are shuffled so, and then with the same generator the indices of each. weighted: each index is
// drawn with replacement; the high 53 bits of a draw, as a number from 0 to 1, times the sum of the weights, are in it.
// A task owns a sampler, calls next() in Task::next, and includes state_dict() in its own state. One thread at a time.
class VERNIER_API Sampler {
 public:
  enum class Order { sequential, shuffled, by_shard, weighted };

  // sequential or shuffled. Throws Error if size is below 1.
  Sampler(std::int64_t size, std::uint64_t seed, Order order = Order::shuffled);
  // The indices in runs of these sizes, which are read one after the other.
  static Sampler by_shard(const std::vector<std::int64_t>& sizes, std::uint64_t seed);
  // float64, 1-D, one weight for each index. Throws Error if one is negative or not finite, or if all are 0.
  static Sampler weighted(const torch::Tensor& weights, std::uint64_t seed);

  // Returns the next `count` indices, or fewer at the end of an epoch, but never none: int64, 1-dim, on the CPU. It may
  // be a view of the epoch's order, which stays valid; do not write to it. Throws Error if count is below 1, or if
  // there is no memory for a random order: 8 bytes for each index. The sequential one takes none, and a shuffled one of
  // more than 2^24 indices neither.
  torch::Tensor next(std::int64_t count);

  // The position of the next index.
  std::int64_t epoch() const { return epoch_; }        // 0 in the first
  std::int64_t position() const { return position_; }  // indices of this epoch that were returned, below size()
  std::int64_t size() const { return size_; }

  // load_state_dict() throws Error, and changes nothing, if size, seed or order differ.
  State state_dict() const;
  void load_state_dict(const State& state);

 private:
  torch::Tensor make_order() const;

  std::int64_t size_;
  std::uint64_t seed_;
  Order order_;
  std::vector<std::int64_t> shards_;  // by_shard
  std::vector<double> sums_;          // weighted: of the weights up to each index
  std::int64_t epoch_ = 0, position_ = 0;
  torch::Tensor indices_;  // the order of epoch_; undefined until next() needs it
};

}  // namespace vernier
