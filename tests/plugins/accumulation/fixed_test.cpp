#include <doctest/doctest.h>
#include <vernier/error.h>
#include <vernier/roles.h>

#include <algorithm>

#include "plugin_library.h"

namespace fixed_test {

using vernier::Accumulation;
using vernier::Batch;

namespace {

std::unique_ptr<Accumulation> in_micro_batches(std::int64_t micro_batches) {
  return make_plugin<Accumulation>("accumulation/fixed", {{"micro_batches", {micro_batches, "test.toml:2"}}});
}

Batch batch_of(std::int64_t samples, std::int64_t tokens = 0) {
  return {{torch::arange(samples), torch::arange(3 * samples).view({samples, 3})}, samples, tokens};
}

}  // namespace

TEST_CASE("fixed: micro-batches are in order, add up to the batch and differ by a sample at most") {
  for (std::int64_t samples = 1; samples <= 40; ++samples) {
    for (std::int64_t count = 1; count <= samples; ++count) {
      CAPTURE(samples);
      CAPTURE(count);
      const auto batch = batch_of(samples, 7 * samples + 3);
      const auto micro_batches = in_micro_batches(count)->split(batch);
      REQUIRE(static_cast<std::int64_t>(micro_batches.size()) == count);
      std::int64_t tokens = 0;
      std::vector<torch::Tensor> first, second;
      for (const auto& micro_batch : micro_batches) {
        CHECK(micro_batch.samples >= samples / count);
        CHECK(micro_batch.samples <= (samples + count - 1) / count);
        CHECK(micro_batch.tensors[0].size(0) == micro_batch.samples);
        tokens += micro_batch.tokens;
        first.push_back(micro_batch.tensors[0]);
        second.push_back(micro_batch.tensors[1]);
      }
      CHECK(tokens == batch.tokens);
      CHECK(torch::equal(torch::cat(first), batch.tensors[0]));
      CHECK(torch::equal(torch::cat(second), batch.tensors[1]));
    }
  }
}

TEST_CASE("fixed: nothing is copied") {
  const auto batch = batch_of(8);
  CHECK(in_micro_batches(1)->split(batch)[0].tensors[0].is_same(batch.tensors[0]));
  CHECK(in_micro_batches(4)->split(batch)[2].tensors[0].is_alias_of(batch.tensors[0]));
}

TEST_CASE("fixed: a tail of an epoch may have fewer samples than there are micro-batches, a whole batch may not") {
  const auto plugin = in_micro_batches(4);
  CHECK_THROWS_WITH_AS(plugin->split(batch_of(3)),
                       "micro_batches = 4 is more than a batch has samples (3); lower `micro_batches` or raise the "
                       "task's batch_size",
                       vernier::Error);
  CHECK(plugin->split(batch_of(4)).size() == 4);
  const auto tail = plugin->split(batch_of(3));
  CHECK(tail.size() == 3);
  CHECK(std::ranges::all_of(tail, [](const Batch& micro_batch) { return micro_batch.samples == 1; }));
  CHECK_THROWS_AS(in_micro_batches(0), vernier::Error);
}

}  // namespace fixed_test
