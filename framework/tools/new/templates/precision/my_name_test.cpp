// Tests the rule of precision/my_name without a run.
#include "my_name.cpp"

#include <ATen/ops/ones.h>
#include <vernier/host.h>
// doctest comes last, because LibTorch has a CHECK of its own.
#define DOCTEST_CONFIG_IMPLEMENT_WITH_MAIN
#include <doctest/doctest.h>

namespace {

struct MyNameCase {
  std::string option;
  torch::ScalarType dtype;
  bool needs_scaler;
};
const std::vector<MyNameCase> dtypes = {{"bf16", torch::kBFloat16, false}, {"fp16", torch::kHalf, true}};

}  // namespace

TEST_CASE("matrix products of forward have the dtype, and those after it have float32") {
  for (const auto& [option, dtype, needs_scaler] : dtypes) {
    CAPTURE(option);
    // Each option is its value with the place that an error names, here "test".
    vernier::Options options("precision/my_name", {{"dtype", {option, "test"}}}, "test");
    MyName plugin(options);
    vernier::TrainerRun run;
    plugin.prepare(run);
    const auto matrix = at::ones({2, 2});
    CHECK((plugin.forward([&] { return matrix.matmul(matrix); }).scalar_type() == dtype));
    CHECK((matrix.matmul(matrix).scalar_type() == torch::kFloat));
    CHECK(plugin.needs_scaler() == needs_scaler);
  }
}
