// Tests the rule of quantizer/my_name without a run.
#include "my_name.cpp"
// doctest comes last, because LibTorch has a CHECK of its own.
#define DOCTEST_CONFIG_IMPLEMENT_WITH_MAIN
#include <doctest/doctest.h>

TEST_CASE("the largest number of a block stays, and the others become multiples of a step") {
  // Options are written as the TOML has them; "test" is their place.
  vernier::Options options("quantizer/my_name",
                           {{"bits", {std::int64_t{3}, "test"}}, {"block", {std::int64_t{4}, "test"}}}, "test");
  MyName quantizer(options);
  vernier::Operand operand;
  operand.numbers = at::tensor({3.0F, -1.2F, 0.4F, 0.0F}).view({1, 4});
  const auto y = quantizer.quantize(operand).numbers;
  CHECK(at::equal(y, at::tensor({3.0F, -1.0F, 0.0F, 0.0F}).view({1, 4})));
}
