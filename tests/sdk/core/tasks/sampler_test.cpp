#include <doctest/doctest.h>
#include <vernier/error.h>
#include <vernier/host.h>
#include <vernier/options.h>
#include <vernier/sampler.h>
#include <vernier/task_options.h>

#include <algorithm>
#include <map>
#include <numeric>
#include <random>
#include <vector>

namespace sampler_test {

using vernier::Error;
using vernier::Sampler;
using Indices = std::vector<std::int64_t>;

namespace {

Indices to_vector(const torch::Tensor& tensor) {
  const auto* first = tensor.const_data_ptr<std::int64_t>();
  return {first, first + tensor.numel()};
}

// All indices of the epoch in which the sampler stands at its start.
Indices epoch_of(Sampler& sampler, std::int64_t count) {
  Indices all;
  for (const auto epoch = sampler.epoch(); sampler.epoch() == epoch;) {
    const auto some = to_vector(sampler.next(count));
    CHECK(some.size() >= 1);
    CHECK(static_cast<std::int64_t>(some.size()) <= count);
    all.insert(all.end(), some.begin(), some.end());
  }
  return all;
}

Indices ascending(std::int64_t size) {
  Indices indices(static_cast<std::size_t>(size));
  std::iota(indices.begin(), indices.end(), 0);
  return indices;
}

}  // namespace

TEST_CASE("each epoch has each index once, whatever the size of a batch") {
  for (const std::int64_t size : {1, 2, 3, 10, 97, 1000}) {
    for (const std::int64_t count : {1, 3, 10, 1000, 5000}) {
      CAPTURE(size);
      CAPTURE(count);
      Sampler sampler(size, 7);
      Sampler reference(size, 7);
      for (int epoch = 0; epoch < 3; ++epoch) {
        auto indices = epoch_of(sampler, count);
        CHECK(indices == epoch_of(reference, size));
        std::ranges::sort(indices);
        CHECK(indices == ascending(size));
      }
    }
  }
}

TEST_CASE("orders differ by epoch and by seed, sequential ones do not") {
  Sampler sampler(100, 1), same(100, 1), other(100, 2), high(100, 1 + (std::uint64_t{1} << 32));
  const auto first = epoch_of(sampler, 10), second = epoch_of(sampler, 10);
  CHECK(first != second);
  CHECK(first == epoch_of(same, 10));
  CHECK(first != epoch_of(other, 10));
  CHECK(first != epoch_of(high, 10));
  Sampler sequential(10, 1, Sampler::Order::sequential);
  CHECK(epoch_of(sequential, 4) == ascending(10));
  CHECK(epoch_of(sequential, 4) == ascending(10));
}

// The order is a promise to every run that was ever saved: these values never change.
TEST_CASE("the order is that of the specification") {
  Sampler sampler(10, 1);
  CHECK(epoch_of(sampler, 10) == Indices{9, 5, 3, 8, 6, 0, 7, 1, 2, 4});
  CHECK(epoch_of(sampler, 10) == Indices{9, 4, 0, 3, 5, 7, 6, 8, 1, 2});
  Sampler large(100'000, 0xDEADBEEFCAFEF00D);
  CHECK(to_vector(large.next(5)) == Indices{35967, 90101, 89174, 78854, 12363});
}

TEST_CASE("every order of few samples is equally likely") {
  std::map<Indices, int> seen;
  Sampler sampler(4, 3);
  const int draws = 24 * 1000;
  for (int i = 0; i < draws; ++i) ++seen[to_vector(sampler.next(4))];
  REQUIRE(seen.size() == 24);
  double chi_squared = 0;
  for (const auto& [order, count] : seen) chi_squared += (count - 1000.0) * (count - 1000.0) / 1000.0;
  CHECK(chi_squared < 49.7);  // 23 degrees of freedom, exceeded once in a thousand
}

TEST_CASE("a saved place goes on with the same indices") {
  std::mt19937 random(5);
  for (int trial = 0; trial < 100; ++trial) {
    const std::int64_t size = 1 + static_cast<std::int64_t>(random() % 50);
    const auto batch = [&] { return 1 + static_cast<std::int64_t>(random() % 20); };
    Sampler sampler(size, 11);
    for (auto steps = random() % 20; steps > 0; --steps) sampler.next(batch());
    Sampler resumed(size, 11);
    resumed.next(batch());
    resumed.load_state_dict(sampler.state_dict());
    CHECK(resumed.epoch() == sampler.epoch());
    CHECK(resumed.position() == sampler.position());
    for (int step = 0; step < 10; ++step) {
      const auto count = batch();
      CHECK(to_vector(resumed.next(count)) == to_vector(sampler.next(count)));
    }
  }
}

TEST_CASE("indices stay valid after the epoch") {
  Sampler sampler(10, 1);
  const auto first = sampler.next(10);
  const auto before = to_vector(first);
  sampler.next(10);
  CHECK(to_vector(first) == before);
  CHECK(torch::arange(10).index_select(0, first).equal(first));
}

TEST_CASE("another size, seed or order is refused and changes nothing") {
  const auto saved = Sampler(10, 1).state_dict();
  Sampler longer(11, 1), other(10, 2), sequential(10, 1, Sampler::Order::sequential);
  CHECK_THROWS_WITH_AS(longer.load_state_dict(saved),
                       "the data order was saved with size 10, this run has 11; resume with the same data and seed, or "
                       "start a new run",
                       Error);
  CHECK_THROWS_AS(other.load_state_dict(saved), Error);
  CHECK_THROWS_AS(sequential.load_state_dict(saved), Error);
  Sampler sampler(10, 1);
  sampler.next(3);
  auto outside = sampler.state_dict();
  outside.put("position", std::int64_t{10});
  CHECK_THROWS_AS(sampler.load_state_dict(outside), Error);
  CHECK(sampler.position() == 3);
  CHECK_THROWS_AS(sampler.load_state_dict({}), Error);
}

TEST_CASE("no samples and empty batches are refused") {
  CHECK_THROWS_WITH_AS(Sampler(0, 1), "there are no samples to train on", Error);
  CHECK_THROWS_WITH_AS(Sampler(3, 1).next(0), "a batch cannot have 0 samples", Error);
}

TEST_CASE("the order is read from an option of its own") {
  const auto read = [](vernier::Table table) {
    vernier::Options options("task/toy", std::move(table), "run.toml:1");
    const auto order = vernier::read_order(options, "of the points");
    REQUIRE(vernier::HostApi::declared(options).size() == 1);
    CHECK(vernier::HostApi::declared(options)[0].meaning == "of the points");
    vernier::HostApi::refuse_unread(options);
    return order;
  };
  const auto order = [](const char* word) { return vernier::Table{{"order", {std::string(word), "run.toml:2"}}}; };
  CHECK(read({}) == Sampler::Order::shuffled);
  CHECK(read(order("shuffled")) == Sampler::Order::shuffled);
  CHECK(read(order("sequential")) == Sampler::Order::sequential);
  CHECK_THROWS_AS(read(order("random")), Error);
}

TEST_CASE("samples without end stream in order, and a random order of them is refused before memory is asked for") {
  constexpr std::int64_t size = std::int64_t{1} << 40;
  Sampler stream(size, 1, Sampler::Order::sequential);
  CHECK(to_vector(stream.next(3)) == Indices{0, 1, 2});
  auto state = stream.state_dict();
  state.put("position", size - 2);
  stream.load_state_dict(state);
  CHECK(to_vector(stream.next(5)) == Indices{size - 2, size - 1});
  CHECK(stream.epoch() == 1);
  CHECK(to_vector(stream.next(2)) == Indices{0, 1});
  Sampler random(size, 1), shards = Sampler::by_shard({size - 1, 1}, 1);
  for (auto* sampler : {&random, &shards}) {
    std::string text;
    try {
      sampler->next(1);
    } catch (const Error& error) {
      text = error.what();
      CHECK(error.kind() == Error::Kind::configuration);
    }
    CHECK_MESSAGE(
        text.starts_with("the random order of 1099511627776 samples takes 8 bytes for each, and there is memory "
                         "for "),
        text);
  }
}

}  // namespace sampler_test
