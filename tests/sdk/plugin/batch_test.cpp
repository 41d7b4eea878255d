#include <doctest/doctest.h>
#include <torch/types.h>
#include <vernier/batch.h>
#include <vernier/error.h>

#include <limits>

namespace {

using vernier::Batch;

constexpr auto largest = std::numeric_limits<std::int64_t>::max();

}  // namespace

TEST_CASE("batch: narrow() refuses samples that the batch does not have, whether it has tensors or not") {
  const Batch without_tensors{.tensors = {}, .samples = 4, .tokens = 8, .indices = {3, 1, 2, 0}};
  Batch with_tensors = without_tensors;
  with_tensors.tensors = {torch::arange(4)};
  const struct {
    std::int64_t first, count;
  } wrong[] = {{-1, 2}, {0, 5}, {0, -1}, {3, 2}, {5, 0}, {largest, 1}, {1, largest}, {-largest, largest}};
  for (const Batch* batch : {&without_tensors, static_cast<const Batch*>(&with_tensors)}) {
    for (const auto& [first, count] : wrong) {
      CAPTURE(first);
      CAPTURE(count);
      CHECK_THROWS_WITH_AS(batch->narrow(first, count), doctest::Contains("a batch of 4 samples cannot give "),
                           vernier::Error);
    }
  }
  CHECK_THROWS_AS(Batch().narrow(-1, 1), vernier::Error);
  const auto middle = with_tensors.narrow(1, 2);
  CHECK(middle.indices == std::vector<std::int64_t>{1, 2});
  CHECK(middle.tensors[0].equal(torch::arange(1, 3)));
  CHECK(middle.tokens == 4);
  CHECK(with_tensors.narrow(4, 0).samples == 0);
}

TEST_CASE("batch: the shares of all ranks are the batch in order, and no other rank has one") {
  const Batch batch{.tensors = {torch::arange(5)}, .samples = 5};
  for (const std::int64_t ranks : {1, 2, 3, 5, 7}) {
    std::vector<torch::Tensor> all;
    for (std::int64_t rank = 0; rank < ranks; ++rank) all.push_back(batch.share(rank, ranks).tensors[0]);
    CHECK(torch::cat(all).equal(batch.tensors[0]));
  }
  const struct {
    std::int64_t rank, ranks;
  } wrong[] = {{0, 0}, {-1, 2}, {2, 2}, {0, -1}, {1, largest}, {largest, largest}};
  for (const auto& [rank, ranks] : wrong) {
    CAPTURE(rank);
    CAPTURE(ranks);
    CHECK_THROWS_WITH_AS(batch.share(rank, ranks), doctest::Contains("a batch has no share of rank "), vernier::Error);
  }
}
