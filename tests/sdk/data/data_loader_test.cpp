#include <doctest/doctest.h>
#include <torch/torch.h>
#include <vernier/data/data_loader.h>
#include <vernier/data/stream.h>
#include <vernier/error.h>

#include <atomic>
#include <chrono>
#include <thread>

#include "patience.h"

namespace data_loader_test {

using vernier::Batch;
using vernier::DataLoader;
using vernier::DataLoaderOptions;
using vernier::DatasetPtr;
using vernier::Error;
using vernier::Random;
using vernier::Sample;
using Order = vernier::Sampler::Order;

namespace {

// Sample i is {i, a random number}; the later the index, the shorter it takes, so workers finish out of order.
class Uneven final : public vernier::Dataset {
 public:
  explicit Uneven(std::int64_t size) : size_(size) {}
  std::int64_t size() const override { return size_; }
  Sample get(std::int64_t index, Random& random) const override {
    std::this_thread::sleep_for(std::chrono::microseconds(10 * ((size_ - index) % 7)));
    return {torch::tensor(index), torch::rand({}, random.generator())};
  }

 private:
  std::int64_t size_;
};

std::vector<Batch> take(DataLoader& loader, int count) {
  std::vector<Batch> batches;
  for (int i = 0; i < count; ++i) batches.push_back(loader.next());
  return batches;
}

bool are_equal(const std::vector<Batch>& a, const std::vector<Batch>& b) {
  return std::ranges::equal(a, b, [](const Batch& x, const Batch& y) {
    return x.samples == y.samples &&
           std::ranges::equal(x.tensors, y.tensors, [](const auto& s, const auto& t) { return s.equal(t); });
  });
}

std::vector<std::int64_t> first_column(const std::vector<Batch>& batches) {
  std::vector<std::int64_t> values;
  for (const auto& batch : batches) {
    for (std::int64_t i = 0; i < batch.samples; ++i) values.push_back(batch.tensors[0][i].item<std::int64_t>());
  }
  return values;
}

DataLoaderOptions with_workers(std::int64_t workers) {
  return {.batch_size = 7, .seed = 5, .workers = workers};
}

// Sample i is {how many samples there were, a random number, another one of the costly part}.
class Endless final : public vernier::Stream {
 public:
  explicit Endless(std::int64_t breaks_at = -1, bool can_skip = false) : breaks_at_(breaks_at), can_skip_(can_skip) {
    remember("count", count_);
    remember("last", last_);
  }
  Sample next(Random& random) override {
    if (count_[0].item<std::int64_t>() == breaks_at_) throw std::runtime_error("broken");
    count_ += 1;  // in the same memory, which a saved place must not share
    last_ = random.uniform();
    return {count_[0].clone(), torch::tensor(last_)};
  }
  bool skip(std::int64_t samples) override {
    count_ += samples;
    return can_skip_ || (count_ -= samples, false);
  }
  Sample finish(Sample sample, Random& random) const override {
    std::this_thread::sleep_for(std::chrono::microseconds(10 * (sample[0].item<std::int64_t>() % 7)));
    sample.push_back(torch::tensor(random.uniform()));
    return sample;
  }
  std::string fingerprint() const override { return "endless"; }

 private:
  std::int64_t breaks_at_;
  bool can_skip_;
  torch::Tensor count_ = torch::zeros({1}, torch::kInt64);
  double last_ = 0;
};

}  // namespace

TEST_CASE("stream: the batches are the same for any number of workers, and go on where they were saved") {
  DataLoader alone(std::make_shared<Endless>(), with_workers(0));
  CHECK(alone.batches_per_epoch() == vernier::endless);
  const auto expected = take(alone, 30);
  CHECK(expected[29].indices == std::vector<std::int64_t>{203, 204, 205, 206, 207, 208, 209});
  CHECK(expected[29].tensors[0][6].item<std::int64_t>() == 210);
  for (const std::int64_t workers : {0, 1, 3}) {
    std::vector<Batch> seen;
    vernier::State state;
    for (int part = 0; part < 10; ++part) {
      DataLoader loader(std::make_shared<Endless>(), with_workers((workers + part) % 4));
      if (part > 0) loader.load_state_dict(state);
      for (auto& batch : take(loader, 3)) seen.push_back(std::move(batch));
      state = loader.state_dict();
    }
    CHECK(are_equal(seen, expected));
  }
  DataLoader loader(std::make_shared<Endless>(), with_workers(2));
  take(loader, 4);
  const auto state = loader.state_dict();
  for (int i = 0; i < 3; ++i) {
    loader.load_state_dict(state);
    CHECK(are_equal(take(loader, 9), {expected.begin() + 4, expected.begin() + 13}));
  }
}

TEST_CASE("stream: ranks load their parts of the same batches, whether samples can be skipped or not") {
  DataLoader alone(std::make_shared<Endless>(), {.batch_size = 7, .seed = 5});
  const auto expected = take(alone, 6);
  for (const bool can_skip : {false, true}) {
    std::vector<std::vector<Batch>> of_ranks;
    for (std::int64_t rank = 0; rank < 3; ++rank) {
      DataLoader loader(std::make_shared<Endless>(-1, can_skip),
                        {.batch_size = 7, .seed = 5, .workers = rank, .rank = rank, .ranks = 3});
      of_ranks.push_back(take(loader, 6));
    }
    for (std::size_t i = 0; i < 6; ++i) {
      const auto whole = Batch::concatenated({of_ranks[0][i], of_ranks[1][i], of_ranks[2][i]});
      CHECK(are_equal({whole}, {expected[i]}));
    }
  }
}

TEST_CASE("stream: one that throws is named with its sample, and the place stays") {
  for (const std::int64_t workers : {0, 2}) {
    DataLoader loader(std::make_shared<Endless>(16), with_workers(workers));
    const auto first = take(loader, 2);
    const auto before = loader.state_dict();
    for (int i = 0; i < 2; ++i) CHECK_THROWS_WITH_AS(loader.next(), "sample 16 of the stream: broken", Error);
    CHECK(loader.state_dict().part("stream").tensor("count").equal(before.part("stream").tensor("count")));
    DataLoader whole(std::make_shared<Endless>(), with_workers(0));
    whole.load_state_dict(before);
    CHECK(whole.next().tensors[0][0].item<std::int64_t>() == 15);
    DataLoader finite(std::make_shared<Uneven>(50), with_workers(0));
    CHECK_THROWS_AS(finite.load_state_dict(before), Error);
  }
}

TEST_CASE("stream: samples that are taken for a validation have random numbers of their own") {
  Endless stream;
  const auto held_out = vernier::take(stream, 5, 5);
  Random none(1, 0, 0);
  CHECK(held_out->size() == 5);
  CHECK(held_out->get(4, none)[0].item<std::int64_t>() == 5);
  DataLoader loader(std::make_shared<Endless>(), with_workers(0));
  CHECK_FALSE(loader.next().tensors[1][0].equal(held_out->get(0, none)[1]));
}

TEST_CASE("the batches are the same for any number of workers") {
  const auto data = std::make_shared<Uneven>(50);
  for (const auto order : {Order::sequential, Order::shuffled, Order::by_shard}) {
    for (const bool drop_last : {false, true}) {
      auto options = with_workers(0);
      options.order = order;
      options.drop_last = drop_last;
      DataLoader alone(data, options);
      const auto expected = take(alone, 20);
      for (const std::int64_t workers : {1, 2, 5}) {
        for (const std::int64_t prefetch : {1, 3}) {
          options.workers = workers;
          options.prefetch = prefetch;
          DataLoader loader(data, options);
          CHECK(are_equal(take(loader, 20), expected));
          CHECK(loader.epoch() == alone.epoch());
        }
      }
    }
  }
}

TEST_CASE("a batch and its parts know the places of their samples") {
  for (const std::int64_t ranks : {1, 3}) {
    auto options = with_workers(2);
    options.ranks = ranks;
    options.rank = ranks - 1;
    DataLoader loader(std::make_shared<Uneven>(50), options);
    auto batches = take(loader, 9);
    std::erase_if(batches, [](const Batch& batch) { return batch.samples == 0; });  // the last rank may get no sample
    for (const auto& batch : batches) CHECK(batch.indices == first_column({batch}));
    const auto all = Batch::concatenated(batches);
    CHECK(all.indices == first_column({all}));
    CHECK(all.narrow(3, 5).indices == first_column({all.narrow(3, 5)}));
    CHECK(all.share(1, 2).indices == first_column({all.share(1, 2)}));
  }
  Batch unknown =
      Batch::concatenated({{{torch::arange(2)}, 2}, {.tensors = {torch::arange(1)}, .samples = 1, .indices = {8}}});
  CHECK(unknown.indices.empty());
  CHECK(unknown.narrow(1, 2).indices.empty());
}

TEST_CASE("an epoch has each sample once, or without the last batch") {
  DataLoader all(std::make_shared<Uneven>(50), with_workers(2));
  CHECK(all.batches_per_epoch() == 8);
  auto values = first_column(take(all, 8));
  std::ranges::sort(values);
  CHECK(values.size() == 50);
  CHECK(std::ranges::adjacent_find(values) == values.end());
  CHECK(all.epoch() == 1);

  auto options = with_workers(2);
  options.drop_last = true;
  DataLoader whole(std::make_shared<Uneven>(50), options);
  CHECK(whole.batches_per_epoch() == 7);
  for (const auto& batch : take(whole, 21)) CHECK(batch.samples == 7);
  CHECK(whole.epoch() == 3);
}

TEST_CASE("a loader goes on where another was saved, several times in an epoch, with batches in flight") {
  const auto data = std::make_shared<Uneven>(50);
  for (const std::int64_t workers : {0, 1, 3}) {
    DataLoader never_stopped(data, with_workers(workers));
    const auto expected = take(never_stopped, 30);
    std::vector<Batch> seen;
    vernier::State state;
    for (int part = 0; part < 10; ++part) {  // three batches each: within epochs, and across their ends
      DataLoader loader(data, with_workers((workers + part) % 4));
      if (part > 0) loader.load_state_dict(state);
      for (auto& batch : take(loader, 3)) seen.push_back(std::move(batch));
      state = loader.state_dict();
    }
    CHECK(are_equal(seen, expected));
  }
}

TEST_CASE("going back within one loader repeats its batches") {
  DataLoader loader(std::make_shared<Uneven>(50), with_workers(2));
  take(loader, 4);
  const auto state = loader.state_dict();
  const auto expected = take(loader, 9);
  for (int i = 0; i < 3; ++i) {
    loader.load_state_dict(state);
    CHECK(are_equal(take(loader, 9), expected));
  }
}

TEST_CASE("samples are drawn in proportion to their weights") {
  auto options = with_workers(2);
  options.weights = torch::tensor({0.0, 1.0, 3.0, 0.0}, torch::kFloat64).repeat({1000});
  const auto numbers = torch::arange(4000);
  DataLoader loader(vernier::tensor_dataset({numbers}), options);
  const auto batches = take(loader, static_cast<int>(loader.batches_per_epoch()));
  std::vector<int> counts(4);
  for (const auto value : first_column(batches)) ++counts[static_cast<std::size_t>(value % 4)];
  CHECK(counts[0] == 0);
  CHECK(counts[3] == 0);
  CHECK(counts[1] + counts[2] == 4000);
  CHECK(std::abs(counts[1] - 1000) < 120);  // four standard deviations are 110
}

TEST_CASE("by_shard reads one shard after the other, each shuffled") {
  const auto part = [](std::int64_t first) { return vernier::tensor_dataset({torch::arange(first, first + 10)}); };
  auto options = with_workers(1);
  options.order = Order::by_shard;
  DataLoader loader(vernier::concat({part(0), part(100), part(200)}), options);
  const auto values = first_column(take(loader, static_cast<int>(loader.batches_per_epoch())));
  REQUIRE(values.size() == 30);
  for (std::size_t shard = 0; shard < 3; ++shard) {
    std::vector<std::int64_t> own(values.begin() + 10 * shard, values.begin() + 10 * (shard + 1));
    CHECK_FALSE(std::ranges::is_sorted(own));
    std::ranges::sort(own);
    CHECK(own.back() - own.front() == 9);
  }
}

TEST_CASE("a dataset that throws is named with its sample, and the place stays") {
  class Broken final : public vernier::Dataset {
   public:
    std::int64_t size() const override { return 20; }
    Sample get(std::int64_t index, Random&) const override {
      if (index == 11 && is_broken) throw std::runtime_error("no such thing");
      return {torch::tensor(index)};
    }
    std::string where(std::int64_t index) const override { return "'a.csv' line " + std::to_string(index + 2); }
    std::atomic<bool> is_broken = true;
  };
  for (const std::int64_t workers : {0, 2}) {
    const auto data = std::make_shared<Broken>();
    DataLoader loader(data, {.batch_size = 4, .order = Order::sequential, .workers = workers});
    take(loader, 2);
    for (int i = 0; i < 2; ++i) CHECK_THROWS_WITH(loader.next(), "'a.csv' line 13: no such thing");
    data->is_broken = false;
    CHECK(first_column(take(loader, 1)) == std::vector<std::int64_t>{8, 9, 10, 11});
  }
}

TEST_CASE("a batch that fails as a whole is named by its sample, or by its first and last") {
  class Broken final : public vernier::Dataset {
   public:
    explicit Broken(std::int64_t bad) : bad_(bad) {}
    std::int64_t size() const override { return 20; }
    Sample get(std::int64_t index, Random&) const override {
      if (index == bad_) throw std::runtime_error("no such thing");
      return {torch::tensor(index)};
    }
    std::optional<Sample> get_batch(const torch::Tensor& indices) const override {
      if ((indices > 4).any().item<bool>()) throw std::runtime_error("not these");
      return Sample{indices};
    }
    std::string where(std::int64_t index) const override { return "line " + std::to_string(index); }

   private:
    std::int64_t bad_;
  };
  const std::pair<std::int64_t, const char*> cases[] = {{6, "line 6: no such thing"},
                                                        {-1, "line 4 to line 7: not these"}};
  for (const auto& [bad, text] : cases) {
    for (const std::int64_t workers : {0, 2}) {
      DataLoader loader(std::make_shared<Broken>(bad),
                        {.batch_size = 4, .order = Order::sequential, .workers = workers});
      take(loader, 1);
      CHECK_THROWS_WITH(loader.next(), text);
    }
  }
}

TEST_CASE("workers prepare as many batches ahead as they should, and no more") {
  class Counting final : public vernier::Dataset {
   public:
    std::int64_t size() const override { return 100; }
    Sample get(std::int64_t index, Random&) const override {
      ++count;
      return {torch::tensor(index)};
    }
    mutable std::atomic<int> count = 0;
  };
  const auto data = std::make_shared<Counting>();
  DataLoader loader(data, {.batch_size = 2, .workers = 2, .prefetch = 3});
  for (int taken = 1; taken < 10; ++taken) {
    loader.next();
    CHECK(loader.waited() >= 0);
    const int wanted = 2 * (taken + 6);
    patience::wait_until([&] { return data->count >= wanted; }, std::chrono::milliseconds(1));
    std::this_thread::sleep_for(std::chrono::milliseconds(2));
    CHECK(data->count == wanted);
  }
}

TEST_CASE("sequences of different lengths are padded or packed") {
  std::vector<Sample> samples;
  for (const std::int64_t length : {3, 1, 4, 2}) {
    samples.push_back({torch::arange(1, length + 1), torch::arange(1, length + 1) * 10});
  }
  const auto padded = vernier::pad(-1)(samples);
  CHECK(padded.samples == 4);
  CHECK(padded.tokens == 10);
  CHECK(padded.tensors[0].equal(torch::tensor({{1, 2, 3, -1}, {1, -1, -1, -1}, {1, 2, 3, 4}, {1, 2, -1, -1}})));
  CHECK(padded.tensors[2].equal(torch::tensor({3, 1, 4, 2})));
  const auto packed = vernier::pack(5)(samples);
  CHECK(packed.samples == 3);
  CHECK(packed.tensors[0].equal(torch::tensor({{1, 2, 3, 1, 0}, {1, 2, 3, 4, 0}, {1, 2, 0, 0, 0}})));
  CHECK(packed.tensors[1].equal(torch::tensor({{10, 20, 30, 10, 0}, {10, 20, 30, 40, 0}, {10, 20, 0, 0, 0}})));
  CHECK(packed.tensors[2].equal(torch::tensor({{1, 1, 1, 2, 0}, {1, 1, 1, 1, 0}, {1, 1, 0, 0, 0}})));
  CHECK_THROWS_WITH_AS(vernier::pack(3)(samples), "a sequence of 4 does not fit into rows of 3; cut it first", Error);
  CHECK_THROWS_AS(vernier::stack(samples), Error);
}

TEST_CASE("wrong options and other data are refused") {
  const auto data = vernier::tensor_dataset({torch::arange(10)});
  const auto make = [&](DataLoaderOptions options) { DataLoader(data, std::move(options)); };
  CHECK_THROWS_AS(make({.batch_size = 0}), Error);
  CHECK_THROWS_AS(make({.workers = -1}), Error);
  CHECK_THROWS_AS(make({.workers = 1, .prefetch = 0}), Error);
  CHECK_THROWS_AS(make({.weights = torch::ones({9})}), Error);
  CHECK_THROWS_AS(make({.weights = torch::zeros({10})}), Error);
  CHECK_THROWS_AS(make({.weights = -torch::ones({10})}), Error);
  CHECK_THROWS_WITH_AS(make({.order = vernier::Sampler::Order::sequential, .weights = torch::ones({10})}),
                       "weights, such as those of `balanced`, draw the samples at random; leave `order` out", Error);
  CHECK_THROWS_WITH_AS(make({.batch_size = 11, .drop_last = true}),
                       "drop_last leaves no batch: the dataset has 10 samples, and a batch 11", Error);
  CHECK_THROWS_AS(DataLoader(vernier::tensor_dataset({torch::arange(0)}), {}), Error);
  CHECK_THROWS_WITH_AS(DataLoader(vernier::DatasetPtr(), {}), doctest::Contains("got a null dataset"), Error);
  CHECK_THROWS_WITH_AS(DataLoader(vernier::StreamPtr(), {}), doctest::Contains("got a null stream"), Error);
  DataLoader loader(data, {}), other(vernier::tensor_dataset({torch::arange(11)}), {}), seeded(data, {.seed = 2});
  CHECK_THROWS_AS(other.load_state_dict(loader.state_dict()), Error);
  CHECK_THROWS_AS(seeded.load_state_dict(loader.state_dict()), Error);
}

TEST_CASE("loader: a dataset of 2^40 samples streams in order, with and without workers") {
  constexpr std::int64_t size = std::int64_t{1} << 40;
  for (const std::int64_t workers : {0, 2}) {
    DataLoader loader(std::make_shared<Uneven>(size),
                      {.batch_size = 3, .order = Order::sequential, .workers = workers});
    CHECK(loader.batches_per_epoch() == (size + 2) / 3);
    CHECK(loader.next().indices == std::vector<std::int64_t>{0, 1, 2});
    auto state = loader.state_dict();
    CHECK(state.integer("position") == 3);
    state.put("position", size - 1);
    loader.load_state_dict(state);
    CHECK(loader.next().indices == std::vector<std::int64_t>{size - 1});
    CHECK(loader.epoch() == 1);
  }
}

}  // namespace data_loader_test
