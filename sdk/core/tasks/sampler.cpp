#include <ATen/core/LegacyTypeDispatch.h>
#include <c10/util/StringUtil.h>
#include <torch/types.h>
#include <vernier/error.h>
#include <vernier/memory.h>
#include <vernier/sampler.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <numeric>
#include <random>
#include <utility>

#include "draw_below.h"

namespace vernier {

namespace {

std::mt19937_64 make_engine(std::uint64_t seed, std::uint64_t epoch) {
  const auto low = [](std::uint64_t number) { return static_cast<std::uint32_t>(number); };
  std::seed_seq seeds = {low(seed), low(seed >> 32), low(epoch), low(epoch >> 32)};
  return std::mt19937_64(seeds);
}

void shuffle(std::int64_t* index, std::int64_t count, std::mt19937_64& engine) {
  for (std::int64_t i = count - 1; i > 0; --i) {
    std::swap(index[i], index[draw_below(static_cast<std::uint64_t>(i) + 1, engine)]);
  }
}

constexpr std::int64_t most_in_memory = 1 << 24;  // indices of a shuffled order

// A permutation of the numbers below `size` that is computed number by number: a Feistel network of eight rounds over
// the fewest bits that hold them. A result that is not below `size` is permuted again until it is (Black and Rogaway,
// "Ciphers with Arbitrary Finite Domains", 2002).
class KeyedOrder {
 public:
  KeyedOrder(std::int64_t size, std::mt19937_64 engine) : size_(static_cast<std::uint64_t>(size)) {
    const int bits = std::bit_width(size_ - 1);
    low_bits_ = bits / 2;
    low_ = (std::uint64_t{1} << low_bits_) - 1;
    high_ = (std::uint64_t{1} << (bits - low_bits_)) - 1;
    for (auto& key : keys_) key = engine();
  }
  std::int64_t at(std::int64_t place) const {
    auto number = static_cast<std::uint64_t>(place);
    do {
      auto low = number & low_, high = number >> low_bits_;
      for (std::size_t round = 0; round < keys_.size(); round += 2) {
        high ^= mixed(low ^ keys_[round]) & high_;
        low ^= mixed(high ^ keys_[round + 1]) & low_;
      }
      number = high << low_bits_ | low;
    } while (number >= size_);
    return static_cast<std::int64_t>(number);
  }

 private:
  std::uint64_t size_, low_ = 0, high_ = 0;  // masks
  int low_bits_ = 0;
  std::array<std::uint64_t, 8> keys_{};
};

bool is_keyed(Sampler::Order order, std::int64_t size) {
  return order == Sampler::Order::shuffled && size > most_in_memory;
}

// The number of an order in a saved state. The keyed one has its own, since a shuffled one once had an order in memory.
std::int64_t order_number(Sampler::Order order, std::int64_t size) {
  constexpr std::int64_t keyed = 4;
  return is_keyed(order, size) ? keyed : static_cast<std::int64_t>(order);
}

void refuse_other(const char* what, std::int64_t saved, std::int64_t own) {
  if (saved == own) return;
  refuse(c10::str("the data order was saved with ", what, " ", saved, ", this run has ", own,
                  "; resume with the same data and seed, or start a new run"));
}

}  // namespace

Sampler::Sampler(std::int64_t size, std::uint64_t seed, Order order) : size_(size), seed_(seed), order_(order) {
  if (size < 1) refuse("there are no samples to train on");
}

Sampler Sampler::by_shard(const std::vector<std::int64_t>& sizes, std::uint64_t seed) {
  Sampler sampler(std::accumulate(sizes.begin(), sizes.end(), std::int64_t{0}), seed, Order::by_shard);
  sampler.shards_ = sizes;
  return sampler;
}

Sampler Sampler::weighted(const torch::Tensor& weights, std::uint64_t seed) {
  const auto numbers = weights.to(torch::kFloat64).contiguous();
  Sampler sampler(numbers.numel(), seed, Order::weighted);
  double sum = 0;
  for (std::int64_t i = 0; i < numbers.numel(); ++i) {
    const double weight = numbers.const_data_ptr<double>()[i];
    if (!(weight >= 0 && std::isfinite(weight))) {
      refuse(c10::str("the weight of sample ", i, " is ", weight, "; weights must be finite and at least 0"));
    }
    sampler.sums_.push_back(sum += weight);
  }
  if (sum == 0) refuse("all weights of the samples are 0, so none can be drawn");
  return sampler;
}

torch::Tensor Sampler::make_order() const {
  constexpr std::int64_t large = 1 << 23;  // 64 MiB: smaller ones fit, or nothing does
  const auto room = size_ < large ? size_ : free_memory(torch::kCPU) / std::int64_t{sizeof(std::int64_t)};
  if (size_ > room) {
    refuse(c10::str("the random order of ", size_, " samples takes 8 bytes for each, and there is memory for ", room,
                    "; set the order to sequential, or let Dataset::get choose a sample at random"));
  }
  auto indices = torch::arange(size_, torch::kInt64);
  auto engine = make_engine(seed_, static_cast<std::uint64_t>(epoch_));
  auto* index = indices.mutable_data_ptr<std::int64_t>();
  if (order_ == Order::shuffled) shuffle(index, size_, engine);
  for (std::int64_t i = 0; order_ == Order::weighted && i < size_; ++i) {
    const double at = static_cast<double>(engine() >> 11) * 0x1p-53 * sums_.back();
    const double below = std::min(at, std::nextafter(sums_.back(), 0.0));  // the product may be rounded up
    index[i] = std::ranges::upper_bound(sums_, below) - sums_.begin();     // never of weight 0
  }
  if (order_ != Order::by_shard) return indices;
  std::vector<std::int64_t> firsts(shards_.size()), shards(shards_.size());
  std::exclusive_scan(shards_.begin(), shards_.end(), firsts.begin(), std::int64_t{0});
  std::iota(shards.begin(), shards.end(), 0);
  shuffle(shards.data(), static_cast<std::int64_t>(shards.size()), engine);
  for (const auto shard : shards) {
    const auto size = shards_[static_cast<std::size_t>(shard)];
    std::iota(index, index + size, firsts[static_cast<std::size_t>(shard)]);
    shuffle(index, size, engine);
    index += size;
  }
  return indices;
}

torch::Tensor Sampler::next(std::int64_t count) {
  if (count < 1) refuse(c10::str("a batch cannot have ", count, " samples"));
  const at::AutoDispatchBelowADInplaceOrView no_graph;  // takes half of the time that a view takes
  const bool is_keyed = vernier::is_keyed(order_, size_);
  const bool is_stream = order_ == Order::sequential || is_keyed;  // no memory is needed for its order
  if (!is_stream && !indices_.defined()) indices_ = make_order();
  const auto end = position_ + std::min(count, size_ - position_);
  const auto taken = is_stream ? torch::arange(position_, end, torch::kInt64) : indices_.slice(0, position_, end);
  if (is_keyed) {
    const KeyedOrder order(size_, make_engine(seed_, static_cast<std::uint64_t>(epoch_)));
    auto* index = taken.mutable_data_ptr<std::int64_t>();
    std::transform(index, index + taken.numel(), index, [&](std::int64_t place) { return order.at(place); });
  }
  position_ += taken.numel();
  if (position_ == size_) {
    epoch_ += 1;
    position_ = 0;
    indices_.reset();
  }
  return taken;
}

State Sampler::state_dict() const {
  State state;
  state.put("size", size_);
  state.put("seed", static_cast<std::int64_t>(seed_));
  state.put("order", order_number(order_, size_));
  state.put("epoch", epoch_);
  state.put("position", position_);
  return state;
}

void Sampler::load_state_dict(const State& state) {
  refuse_other("size", state.integer("size"), size_);
  refuse_other("seed", state.integer("seed"), static_cast<std::int64_t>(seed_));
  const auto saved = state.integer("order"), own = order_number(order_, size_);
  if (saved != own) {
    constexpr const char* names[] = {"sequential", "shuffled in memory", "shuffled by shard", "weighted", "computed"};
    const auto name_of = [&](std::int64_t order) {
      return order < 0 || order >= std::ssize(names) ? "unknown" : names[order];
    };
    refuse(c10::str("the data order was saved as ", name_of(saved), ", and that of this run is ", name_of(own),
                    "; resume with the same data and order, or start a new run"));
  }
  const auto epoch = state.integer("epoch"), position = state.integer("position");
  if (epoch < 0 || position < 0 || position >= size_) {
    throw Error(c10::str("the saved data order has no epoch ", epoch, " with position ", position));
  }
  epoch_ = epoch;
  position_ = position;
  indices_.reset();
}

}  // namespace vernier
