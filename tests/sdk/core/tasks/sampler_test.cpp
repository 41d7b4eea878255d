#include <doctest/doctest.h>
#include <torch/types.h>
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

constexpr std::int64_t many = (1 << 24) + 1001;  // an order that is computed index by index

vernier::State at(const Sampler& sampler, std::int64_t epoch, std::int64_t position) {
  auto state = sampler.state_dict();
  state.put("epoch", epoch);
  state.put("position", position);
  return state;
}

// Recorded by keyed_order.py.
TEST_CASE("the order of more than 2^24 samples is that of the specification") {
  Sampler sampler(many, 1), large(std::int64_t{1} << 40, 0xDEADBEEFCAFEF00D);
  CHECK(to_vector(sampler.next(5)) == Indices{10299434, 12574524, 6449761, 11354710, 1466181});
  sampler.load_state_dict(at(sampler, 1, 0));
  CHECK(to_vector(sampler.next(5)) == Indices{6912760, 8598804, 3151630, 6230916, 8161115});
  CHECK(to_vector(large.next(5)) == Indices{228295830660, 960962134187, 372181139451, 1006768832317, 774234520414});
}

double chi_squared(const std::vector<std::int64_t>& counts) {
  const auto all = std::accumulate(counts.begin(), counts.end(), std::int64_t{0});
  const auto expected = static_cast<double>(all) / static_cast<double>(counts.size());
  double sum = 0;
  for (const auto count : counts)
    sum += (static_cast<double>(count) - expected) * (static_cast<double>(count) - expected);
  return sum / expected;
}

// The bounds are exceeded once in a thousand, as scipy.stats.chi2.ppf(0.999, degrees of freedom) has them.
TEST_CASE("the order of more than 2^24 samples has each once, and looks random") {
  Sampler sampler(many, 5);
  Indices order;
  while (sampler.epoch() == 0) {  // in pieces of any size
    const auto some = to_vector(sampler.next(1'000'003));
    order.insert(order.end(), some.begin(), some.end());
  }
  REQUIRE(std::ssize(order) == many);
  std::vector<bool> seen(static_cast<std::size_t>(many));
  std::vector<std::int64_t> places(64 * 64), low_bits(256 * 256), steps(256);
  for (std::int64_t i = 0; i < many; ++i) {
    const auto index = order[static_cast<std::size_t>(i)];
    seen[static_cast<std::size_t>(index)] = true;
    const auto add = [](std::vector<std::int64_t>& counts, std::int64_t at) { ++counts[static_cast<std::size_t>(at)]; };
    add(places, i * 64 / many * 64 + index * 64 / many);
    add(low_bits, (i & 255) * 256 + (index & 255));
    const auto before = i == 0 ? order.back() : order[static_cast<std::size_t>(i - 1)];
    add(steps, (index - before + many) % many * 256 / many);
  }
  CHECK(std::ranges::count(seen, true) == many);
  CHECK(chi_squared(places) < 4250);  // 63 * 63 degrees of freedom
  CHECK(chi_squared(low_bits) < 66145);
  CHECK(chi_squared(steps) < 330.5);
  std::vector<std::int64_t> firsts(100), second(100);  // over seeds and over epochs
  for (std::uint64_t seed = 0; seed < 5'000; ++seed) {
    Sampler one(many, seed);
    ++firsts[static_cast<std::size_t>(one.next(1)[0].item<std::int64_t>() * 100 / many)];
  }
  Sampler one(many, 7);
  for (std::int64_t epoch = 0; epoch < 5'000; ++epoch) {
    one.load_state_dict(at(one, epoch, 0));
    ++second[static_cast<std::size_t>(one.next(1)[0].item<std::int64_t>() * 100 / many)];
  }
  CHECK(chi_squared(firsts) < 148.2);
  CHECK(chi_squared(second) < 148.2);
}

TEST_CASE("an order of more than 2^24 samples goes on at any place, and not from one that was in memory") {
  Sampler sampler(many, 3);
  sampler.load_state_dict(at(sampler, 0, many - 7));
  Sampler resumed(many, 3);
  resumed.load_state_dict(sampler.state_dict());
  for (int i = 0; i < 5; ++i) CHECK(to_vector(sampler.next(3)) == to_vector(resumed.next(3)));
  auto in_memory = sampler.state_dict();
  in_memory.put("order", static_cast<std::int64_t>(Sampler::Order::shuffled));
  CHECK_THROWS_WITH_AS(
      resumed.load_state_dict(in_memory),
      "the data order was saved as shuffled in memory, and that of this run is computed; resume with the same data and "
      "order, or start a new run",
      Error);
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

TEST_CASE("samples without end stream in order, and an order by shard is refused before memory is asked for") {
  constexpr std::int64_t size = std::int64_t{1} << 40;
  Sampler stream(size, 1, Sampler::Order::sequential);
  CHECK(to_vector(stream.next(3)) == Indices{0, 1, 2});
  auto state = stream.state_dict();
  state.put("position", size - 2);
  stream.load_state_dict(state);
  CHECK(to_vector(stream.next(5)) == Indices{size - 2, size - 1});
  CHECK(stream.epoch() == 1);
  CHECK(to_vector(stream.next(2)) == Indices{0, 1});
  auto shards = Sampler::by_shard({size - 1, 1}, 1);
  std::string text;
  try {
    shards.next(1);
  } catch (const Error& error) {
    text = error.what();
    CHECK(error.kind() == Error::Kind::configuration);
  }
  CHECK_MESSAGE(
      text.starts_with("the random order of 1099511627776 samples takes 8 bytes for each, and there is memory for "),
      text);
}

}  // namespace sampler_test
