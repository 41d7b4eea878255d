// Tests distributed/my_name without a run: two ranks in two threads.
#include "my_name.cpp"

#include <ATen/ops/full.h>
#include <vernier/host.h>
// doctest comes last, because LibTorch has a CHECK of its own.
#define DOCTEST_CONFIG_IMPLEMENT_WITH_MAIN
#include <doctest/doctest.h>

namespace {

constexpr const char* folder = "my_name_test_ranks";

// The results of the exchanges on a rank.
struct Exchanged {
  std::vector<std::string> gathered;
  torch::Tensor sum, weight;
};

Exchanged exchange(std::int64_t rank) {
  // Each option is its value with the place that an error names, here "test".
  vernier::Options options("distributed/my_name", {{"folder", {std::string(folder), "test"}}}, "test");
  MyName plugin(options, {.rank = rank, .ranks = 2});
  Exchanged result;
  result.gathered = plugin.gather("from " + std::to_string(rank));
  result.sum = at::full({3}, rank + 1.0);
  plugin.sum(result.sum)();
  result.weight = at::full({2, 2}, rank + 10.0);
  plugin.broadcast({{}, {result.weight}});
  return result;
}

}  // namespace

TEST_CASE("all ranks have the same bytes, sums and weights") {
  std::filesystem::remove_all(folder);
  Exchanged first, second;
  std::thread other([&] { second = exchange(1); });
  first = exchange(0);
  other.join();
  for (const auto& result : {first, second}) {
    CHECK(result.gathered == std::vector<std::string>{"from 0", "from 1"});
    CHECK(result.sum.equal(at::full({3}, 3.0)));
    CHECK(result.weight.equal(at::full({2, 2}, 11.0)));
  }
  std::filesystem::remove_all(folder);
}
