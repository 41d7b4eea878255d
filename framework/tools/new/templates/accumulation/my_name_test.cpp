// Tests the rule of accumulation/my_name without a run.
#include "my_name.cpp"

#include <ATen/ops/arange.h>
#include <ATen/ops/cat.h>
// doctest comes last, because LibTorch has a CHECK of its own.
#define DOCTEST_CONFIG_IMPLEMENT_WITH_MAIN
#include <doctest/doctest.h>

TEST_CASE("a batch is split into halves in the order of its samples") {
  // Each option is its value with the place that an error names, here "test".
  vernier::Options options("accumulation/my_name", {{"smallest", {std::int64_t{4}, "test"}}}, "test");
  MyName plugin(options);
  const std::vector<std::vector<std::int64_t>> cases = {{1}, {3}, {2, 2}, {2, 3}, {4, 4}};  // samples of each part
  for (const auto& sizes : cases) {
    vernier::Batch batch;
    for (const auto size : sizes) batch.samples += size;
    batch.tensors = {at::arange(batch.samples)};
    const auto parts = plugin.split(batch);
    REQUIRE(parts.size() == sizes.size());
    std::vector<torch::Tensor> samples;
    for (std::size_t i = 0; i < parts.size(); ++i) {
      CHECK(parts[i].samples == sizes[i]);
      samples.push_back(parts[i].tensors[0]);
    }
    CHECK(at::cat(samples).equal(batch.tensors[0]));
  }
}
