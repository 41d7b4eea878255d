// The path of matrix products. A process has one, so a run of the program tests the others (tests/framework/cli).
#include <ATen/ops/mm.h>
#include <ATen/ops/ones.h>
#include <doctest/doctest.h>
#include <torch/types.h>
#include <vernier/error.h>
#include <vernier/matmul.h>

#include <string>

namespace matmul_test {

TEST_CASE("matmul: what is not a path is refused") {
  CHECK_THROWS_WITH_AS(vernier::use_matmul("fast"), "matmul is \"fast\", and must be auto, plain or intel",
                       vernier::Error);
}

TEST_CASE("matmul: the path stays, and another one comes too late after a product") {
  at::mm(at::ones({64, 64}), at::ones({64, 64}));
  const std::string path = vernier::matmul_path();
  const auto choice = vernier::use_matmul();
  CHECK(path == vernier::matmul_path());
  CHECK(choice.path == (path == "intel" ? vernier::MatmulPath::intel : vernier::MatmulPath::plain));
  CHECK_FALSE(choice.reason.empty());
  CHECK(vernier::use_matmul(path).path == choice.path);
  if (__builtin_cpu_is("intel") != 0) return;  // Intel's one path has both names
  CHECK_THROWS_WITH_AS(vernier::use_matmul(path == "intel" ? "plain" : "intel"), doctest::Contains("comes too late"),
                       vernier::Error);
}

}  // namespace matmul_test
