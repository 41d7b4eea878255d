#include <ATen/CPUGeneratorImpl.h>
#include <ATen/ops/mm.h>
#include <ATen/ops/rand.h>
#include <c10/util/StringUtil.h>
#include <torch/types.h>
#include <vernier/error.h>
#include <vernier/matmul.h>

#include <algorithm>
#include <atomic>
#include <cmath>

#include "half_products.h"

namespace vernier {

namespace {

std::atomic<bool> takes_intel_path = false;
std::atomic<bool> was_asked = false;  // by MKL, which keeps the answer
std::atomic<bool> is_plain_wanted = false;

bool is_intel() {
  __builtin_cpu_init();
  return __builtin_cpu_is("intel") != 0;
}

bool is_amd_with_avx512() {
  __builtin_cpu_init();
  return __builtin_cpu_is("amd") != 0 && __builtin_cpu_supports("avx512f") != 0;
}

// The largest difference between a product and a plain loop in double, as a share of the largest element.
double error_of_a_product() {
  constexpr std::int64_t m = 37, k = 129, n = 66;
  auto generator = at::make_generator<at::CPUGeneratorImpl>(1);
  const auto a = at::rand({m, k}, generator) - 0.5, b = at::rand({k, n}, generator) - 0.5;
  const auto product = at::mm(a, b);
  const auto *left = a.const_data_ptr<float>(), *right = b.const_data_ptr<float>();
  const auto* computed = product.const_data_ptr<float>();
  double difference = 0, largest = 0;
  for (std::int64_t i = 0; i < m; ++i) {
    for (std::int64_t j = 0; j < n; ++j) {
      double exact = 0;
      for (std::int64_t l = 0; l < k; ++l) exact += static_cast<double>(left[i * k + l]) * right[l * n + j];
      difference = std::max(difference, std::abs(exact - computed[i * n + j]));
      largest = std::max(largest, std::abs(exact));
    }
  }
  return difference / largest;
}

MatmulChoice chosen(const std::string& wanted) {
  if (is_intel()) return {MatmulPath::plain, "Intel: MKL takes its path for Intel by itself"};
  if (wanted == "intel") return {MatmulPath::intel, "as `matmul` says"};
  if (wanted == "plain") return {MatmulPath::plain, "as `matmul` says"};
  if (is_amd_with_avx512()) return {MatmulPath::intel, "AMD with AVX-512: MKL's path for Intel is faster"};
  return {MatmulPath::plain, "no AMD processor with AVX-512"};
}

MatmulPath current() {
  return takes_intel_path ? MatmulPath::intel : MatmulPath::plain;
}

}  // namespace

// MKL calls it before it chooses its kernels. This definition is found before MKL's own, which says whether the
// processor is Intel's.
extern "C" VERNIER_API int mkl_serv_intel_cpu_true();
extern "C" int mkl_serv_intel_cpu_true() {
  was_asked = true;
  return is_intel() || takes_intel_path ? 1 : 0;
}

MatmulChoice use_matmul(const std::string& wanted) {
  if (wanted != "auto" && wanted != "plain" && wanted != "intel") {
    throw Error("matmul is \"" + wanted + "\", and must be auto, plain or intel", Error::Kind::configuration);
  }
  const auto choice = chosen(wanted);
  if (choice.path != current() && was_asked) {
    if (wanted == "auto") return {current(), "MKL had started before"};
    throw Error("matmul = \"" + wanted + "\" comes too late: MKL has chosen its path in this process already",
                Error::Kind::configuration);
  }
  is_plain_wanted = wanted == "plain";
  takes_intel_path = choice.path == MatmulPath::intel;
  const double error = error_of_a_product();
  if (error > 1e-5) {
    throw Error(c10::str("products with matmul = \"", matmul_path(), "\" are wrong on this processor, by ", error,
                         " of their largest element; set [run] matmul = \"plain\""),
                Error::Kind::training);
  }
  if (choice.path == MatmulPath::plain || was_asked) return choice;
  takes_intel_path = false;
  if (wanted == "auto") return {MatmulPath::plain, "this LibTorch does not ask for a path"};
  throw Error("matmul = \"intel\" has no effect: LibTorch was built without MKL, or is linked before vernier::sdk",
              Error::Kind::configuration);
}

bool keeps_plain_products() {
  return is_plain_wanted;
}

const char* matmul_path() {
  return takes_intel_path ? "intel" : "plain";
}

}  // namespace vernier
