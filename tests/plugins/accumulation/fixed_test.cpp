#include <doctest/doctest.h>
#include <torch/types.h>
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

TEST_CASE("fixed: tokens are counted in a tensor that has some for each sample, and not in another") {
  const auto split = [](Batch batch, vernier::Table more) -> std::string {
    more["weight"] = {std::string("tokens"), "test.toml:2"};
    more["micro_batches"] = {std::int64_t{2}, "test.toml:2"};
    const auto fixed = make_plugin<Accumulation>("accumulation/fixed", more);
    try {
      return c10::str(*fixed->split(batch).front().weight);
    } catch (const vernier::Error& error) {
      return error.what();
    }
  };
  const auto tokens = torch::arange(12).view({4, 3});
  const auto number = [](std::int64_t value) { return vernier::Value{value, "test.toml:2"}; };
  CHECK(split({{tokens}, 4}, {}) == "6");
  CHECK(split({{tokens, torch::ones({4})}, 4}, {}) ==
        "weight_column = -1 is a tensor of Float [2], with one number for each sample, which are not its tokens; name "
        "another of the batch's tensors, 0 to 1");
  CHECK(split({{tokens, torch::ones({4})}, 4}, {{"weight_column", number(0)}}) == "6");
  CHECK(split({{tokens, torch::ones({4, 3})}, 4}, {}).find("for a mask, give its `padding`") != std::string::npos);
  CHECK(split({{tokens, torch::ones({4, 3}).tril()}, 4}, {{"padding", number(0)}}) == "3");
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
