// Tests checkpoint/my_name without a run.
#include "my_name.cpp"

#include <ATen/ops/full.h>
#include <vernier/host.h>
// doctest comes last, because LibTorch has a CHECK of its own.
#define DOCTEST_CONFIG_IMPLEMENT_WITH_MAIN
#include <doctest/doctest.h>

TEST_CASE("a snapshot is read again, the newest one if none is named") {
  namespace fs = std::filesystem;
  // Each option is its value with the place that an error names, here "test".
  vernier::Options options("checkpoint/my_name", {{"every", {std::int64_t{2}, "test"}}}, "test");
  MyName plugin(options);
  vernier::TrainerRun run;
  run.output = "my_name_test_run";
  fs::remove_all(run.output);
  fs::create_directory(run.output);
  CHECK_FALSE(plugin.read(run, "").has_value());

  std::vector<std::int64_t> saved;
  for (run.step = 1; run.step <= 5; ++run.step) {
    if (!plugin.due(run)) continue;
    plugin.write({{"model/weight", at::full({3}, run.step)}, {"trainer/step", at::full({}, run.step)}}, run);
    saved.push_back(run.step);
  }
  CHECK(saved == std::vector<std::int64_t>{2, 4});
  const auto first = run.output + "/checkpoints/" + vernier::checkpoint_name(2);
  const std::vector<std::pair<std::string, std::int64_t>> places = {{"", 4}, {run.output, 4}, {first, 2}};
  for (const auto& [from, step] : places) {
    const auto snapshot = plugin.read(run, from);
    REQUIRE(snapshot.has_value());
    CHECK(snapshot->tensor("model/weight").equal(at::full({3}, step)));
    CHECK(snapshot->tensor("trainer/step").equal(at::full({}, step)));
  }
  fs::remove_all(run.output);
}
