#include <c10/util/StringUtil.h>
#include <torch/types.h>
#include <vernier/error.h>
#include <vernier/options.h>
#include <vernier/sampler.h>

#include <algorithm>
#include <random>
#include <utility>

namespace vernier {

namespace {

// Lemire, "Fast random integer generation in an interval" (2019): unbiased, and nearly always without a division.
std::uint64_t draw_below(std::uint64_t bound, std::mt19937_64& engine) {
  __extension__ using Wide = unsigned __int128;
  Wide product = Wide{engine()} * bound;
  if (static_cast<std::uint64_t>(product) < bound) {
    const std::uint64_t rejected = -bound % bound;  // 2^64 mod bound
    while (static_cast<std::uint64_t>(product) < rejected) product = Wide{engine()} * bound;
  }
  return static_cast<std::uint64_t>(product >> 64);
}

std::mt19937_64 make_engine(std::uint64_t seed, std::uint64_t epoch) {
  const auto low = [](std::uint64_t number) { return static_cast<std::uint32_t>(number); };
  std::seed_seq seeds = {low(seed), low(seed >> 32), low(epoch), low(epoch >> 32)};
  return std::mt19937_64(seeds);
}

void refuse_other(const char* what, std::int64_t saved, std::int64_t own) {
  if (saved == own) return;
  throw Error(c10::str("the data order was saved with ", what, " ", saved, ", this run has ", own,
                       "; resume with the same data and seed, or start a new run"),
              Error::Kind::configuration);
}

}  // namespace

Sampler::Sampler(std::int64_t size, std::uint64_t seed, Order order) : size_(size), seed_(seed), order_(order) {
  if (size < 1) throw Error("there are no samples to train on", Error::Kind::configuration);
}

torch::Tensor Sampler::make_order() const {
  auto indices = torch::arange(size_, torch::kInt64);
  if (order_ == Order::sequential) return indices;
  auto engine = make_engine(seed_, static_cast<std::uint64_t>(epoch_));
  auto* index = indices.mutable_data_ptr<std::int64_t>();
  for (std::int64_t i = size_ - 1; i > 0; --i) {
    std::swap(index[i], index[draw_below(static_cast<std::uint64_t>(i) + 1, engine)]);
  }
  return indices;
}

torch::Tensor Sampler::next(std::int64_t count) {
  if (count < 1) throw Error(c10::str("a batch cannot have ", count, " samples"), Error::Kind::configuration);
  if (!indices_.defined()) indices_ = make_order();
  const auto taken = indices_.narrow(0, position_, std::min(count, size_ - position_));
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
  state.put("order", static_cast<std::int64_t>(order_));
  state.put("epoch", epoch_);
  state.put("position", position_);
  return state;
}

void Sampler::load_state_dict(const State& state) {
  refuse_other("size", state.integer("size"), size_);
  refuse_other("seed", state.integer("seed"), static_cast<std::int64_t>(seed_));
  refuse_other("shuffle", state.integer("order"), static_cast<std::int64_t>(order_));
  const auto epoch = state.integer("epoch"), position = state.integer("position");
  if (epoch < 0 || position < 0 || position >= size_) {
    throw Error(c10::str("the saved data order has no epoch ", epoch, " with position ", position));
  }
  epoch_ = epoch;
  position_ = position;
  indices_.reset();
}

Sampler::Order read_order(Options& options, const char* meaning) {
  const auto order = options.choose("order", "shuffled", {"shuffled", "sequential"}, meaning);
  return order == "shuffled" ? Sampler::Order::shuffled : Sampler::Order::sequential;
}

}  // namespace vernier
