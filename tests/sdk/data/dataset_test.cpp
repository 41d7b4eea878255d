#include <doctest/doctest.h>
#include <torch/torch.h>
#include <vernier/data/dataset.h>
#include <vernier/error.h>

#include <set>

namespace dataset_test {

using vernier::DatasetPtr;
using vernier::Error;
using vernier::Random;
using vernier::Sample;

namespace {

// Sample i is {i, 10 * i}.
DatasetPtr counting(std::int64_t size) {
  const auto numbers = torch::arange(size);
  return vernier::tensor_dataset({numbers, numbers * 10});
}

std::vector<std::int64_t> values_of(const DatasetPtr& dataset) {
  std::vector<std::int64_t> values;
  for (std::int64_t i = 0; i < dataset->size(); ++i) {
    Random random(1, 0, i);
    const auto sample = dataset->get(i, random);
    CHECK(sample.at(1).item<std::int64_t>() == 10 * sample.at(0).item<std::int64_t>());
    values.push_back(sample[0].item<std::int64_t>());
  }
  return values;
}

// A dataset whose samples have places in a file.
class Lines final : public vernier::Dataset {
 public:
  explicit Lines(std::string file) : file_(std::move(file)) {}
  std::int64_t size() const override { return 3; }
  Sample get(std::int64_t, Random&) const override { return {}; }
  std::string where(std::int64_t index) const override { return file_ + ":" + std::to_string(index + 1); }
  std::string fingerprint() const override { return file_; }

 private:
  std::string file_;
};

}  // namespace

TEST_CASE("datasets are put together, cut and changed") {
  const auto five = counting(5);
  CHECK(values_of(five) == std::vector<std::int64_t>{0, 1, 2, 3, 4});
  CHECK(values_of(vernier::subset(five, torch::tensor({4, 0, 0}))) == std::vector<std::int64_t>{4, 0, 0});
  CHECK(values_of(vernier::concat({five, counting(0), counting(2)})) == std::vector<std::int64_t>{0, 1, 2, 3, 4, 0, 1});
  const auto doubled = vernier::map(five, [](Sample sample, Random&) { return Sample{sample[0] * 2, sample[1] * 2}; });
  CHECK(values_of(doubled) == std::vector<std::int64_t>{0, 2, 4, 6, 8});
  CHECK(vernier::concat({})->size() == 0);
  CHECK(vernier::concat({five, five})->shards() == std::vector<std::int64_t>{5, 5});
}

TEST_CASE("a batch is that of its samples") {
  const auto picked = vernier::subset(counting(9), torch::tensor({8, 7, 1}));
  const auto batch = picked->get_batch(torch::tensor({2, 0}));
  REQUIRE(batch);
  CHECK(batch->at(0).equal(torch::tensor({1, 8})));
  CHECK(batch->at(1).equal(torch::tensor({10, 80})));
  CHECK_FALSE(vernier::map(counting(2), [](Sample sample, Random&) { return sample; })->get_batch(torch::tensor({0})));
}

TEST_CASE("the place and the identity of a sample pass through") {
  const DatasetPtr a = std::make_shared<Lines>("a.csv"), b = std::make_shared<Lines>("b.csv");
  const auto all = vernier::map(vernier::subset(vernier::concat({a, b}), torch::tensor({5, 2})),
                                [](Sample sample, Random&) { return sample; });
  CHECK(all->where(0) == "b.csv:3");
  CHECK(all->where(1) == "a.csv:3");
  CHECK(all->fingerprint() != vernier::subset(a, torch::tensor({0, 1}))->fingerprint());
}

TEST_CASE("other numbers in memory and another choice of samples are other data") {
  const auto numbers = [](std::int64_t first) { return vernier::tensor_dataset({torch::arange(first, first + 6)}); };
  const auto subset = [&](std::vector<std::int64_t> indices) {
    return vernier::subset(numbers(0), torch::tensor(indices))->fingerprint();
  };
  CHECK(numbers(0)->fingerprint() == numbers(0)->fingerprint());
  CHECK(numbers(0)->fingerprint() != numbers(1)->fingerprint());
  CHECK(vernier::tensor_dataset({torch::zeros({2, 3})})->fingerprint() !=
        vernier::tensor_dataset({torch::zeros({2, 1, 3})})->fingerprint());
  CHECK(subset({0, 1}) == subset({0, 1}));
  CHECK(subset({0, 1}) != subset({0, 2}));
}

TEST_CASE("a subset has the shards of its dataset, unless its indices go back") {
  const auto files = vernier::concat({counting(5), counting(5), counting(2)});
  const std::pair<std::vector<std::int64_t>, std::vector<std::int64_t>> cases[] = {
      {{0, 1, 4, 5, 6, 11}, {3, 2, 1}},
      {{0, 0, 10}, {2, 1}},
      {{6, 7}, {2}},
      {{4, 0}, {2}},
      {{7, 2, 11}, {3}},
      {{}, {0}},
  };
  for (const auto& [indices, shards] : cases) {
    CAPTURE(indices.size());
    CHECK(vernier::subset(files, torch::tensor(indices, torch::kInt64))->shards() == shards);
  }
  const auto thirds = vernier::concat({counting(5), counting(5), counting(5)});
  CHECK(vernier::split(thirds, 0.2, 1).first->shards().size() == 3);
}

TEST_CASE("split takes each sample once") {
  for (const std::int64_t size : {1, 2, 10, 1000}) {
    for (const double share : {0.0, 0.1, 0.5, 1.0}) {
      CAPTURE(size);
      CAPTURE(share);
      const auto [first, second] = vernier::split(counting(size), share, 3);
      CHECK(second->size() == static_cast<std::int64_t>(std::ceil(static_cast<double>(size) * share)));
      std::set<std::int64_t> all;
      for (const auto& part : {first, second}) {
        for (const auto value : values_of(part)) all.insert(value);
      }
      CHECK(first->size() + second->size() == size);
      CHECK(static_cast<std::int64_t>(all.size()) == size);
    }
  }
  CHECK(values_of(vernier::split(counting(50), 0.5, 1).first) != values_of(vernier::split(counting(50), 0.5, 2).first));
}

TEST_CASE("bad parts are refused") {
  CHECK_THROWS_WITH_AS(vernier::tensor_dataset({torch::zeros({3}), torch::zeros({4})}),
                       "the tensors of a dataset have a different number of samples: [3] and [4]", Error);
  CHECK_THROWS_WITH_AS(vernier::subset(counting(3), torch::tensor({3})),
                       "a subset has index 3 and its dataset has 3 samples", Error);
  CHECK_THROWS_AS(vernier::split(counting(3), 1.5, 1), Error);
}

TEST_CASE("a dataset of torch::data is one of ours") {
  class Squares final : public torch::data::datasets::Dataset<Squares> {
   public:
    torch::data::Example<> get(std::size_t index) override {
      const auto number = static_cast<std::int64_t>(index);
      return {torch::tensor(number), torch::tensor(number * number)};
    }
    std::optional<std::size_t> size() const override { return 7; }
  };
  const auto squares = vernier::torch_dataset(Squares());
  CHECK(squares->size() == 7);
  Random random(1, 0, 0);
  CHECK(squares->get(5, random)[1].item<std::int64_t>() == 25);
}

TEST_CASE("random numbers of a sample") {
  const auto draw = [](std::uint64_t seed, std::int64_t epoch, std::int64_t index) {
    return Random(seed, epoch, index)();
  };
  std::set<std::uint64_t> seen;
  for (std::uint64_t seed = 0; seed < 10; ++seed) {
    for (std::int64_t epoch = 0; epoch < 10; ++epoch) {
      for (std::int64_t index = 0; index < 100; ++index) seen.insert(draw(seed, epoch, index));
    }
  }
  CHECK(seen.size() == 10'000);
  CHECK(draw(1, 2, 3) == draw(1, 2, 3));
  Random random(7, 0, 0);
  double sum = 0;
  std::vector<int> counts(6);
  for (int i = 0; i < 60'000; ++i) {
    const double share = random.uniform(2, 4);
    CHECK_UNARY(share >= 2);
    CHECK_UNARY(share < 4);
    sum += share;
    ++counts.at(static_cast<std::size_t>(random.below(6)));
  }
  CHECK(sum / 60'000 == doctest::Approx(3).epsilon(0.005));  // 1e-2 is about four standard deviations
  for (const int count : counts) CHECK(std::abs(count - 10'000) < 400);
  Random one(1, 1, 1), same(1, 1, 1);
  CHECK(torch::rand({3}, one.generator()).equal(torch::rand({3}, same.generator())));
}

}  // namespace dataset_test
