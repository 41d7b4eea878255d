// The calls of cuBLASLt. A stand-in gives its functions the meaning of NVIDIA's reference: matrices are stored by
// columns, and D = epilogue(alpha * op(A) * op(B) + beta * C). Its results are those of the loops of multiply().
#include <ATen/ATen.h>
#include <doctest/doctest.h>
#include <torch/types.h>

#if __has_include(<cublasLt.h>)

#include <cmath>
#include <cstring>

#include "../../../sdk/cuda/cublas_lt.h"
#include "../../../sdk/cuda/kinds.h"

extern "C" const vernier::gpu::Library vernier_cuda;

namespace cublas_lt_test {

namespace {

struct Layout {
  std::uint64_t rows, columns;
  std::int64_t stride;
};
struct How {
  cublasOperation_t of_a = CUBLAS_OP_N, of_b = CUBLAS_OP_N;
  cublasLtEpilogue_t epilogue = CUBLASLT_EPILOGUE_DEFAULT;
  void *bias = nullptr, *aux = nullptr;
  std::int64_t aux_stride = 0;
};
int choices = 0;
bool has_algorithm = true;

double number(const void* from, std::int64_t i) {
  return vernier::gpu::bfloat16_to_float(static_cast<const std::uint16_t*>(from)[i]);
}
void put(void* to, std::int64_t i, double x) {
  static_cast<std::uint16_t*>(to)[i] = vernier::gpu::float_to_bfloat16(static_cast<float>(x));
}

}  // namespace

}  // namespace cublas_lt_test

using cublas_lt_test::How;
using cublas_lt_test::Layout;

#define STAND_IN extern "C" __attribute__((visibility("default")))

STAND_IN cudaError_t cudaGetDevice(int* device) {
  *device = 0;
  return cudaSuccess;
}
STAND_IN cublasStatus_t cublasLtCreate(cublasLtHandle_t* handle) {
  static int one;
  *handle = reinterpret_cast<cublasLtHandle_t>(&one);
  return CUBLAS_STATUS_SUCCESS;
}
STAND_IN const char* cublasLtGetStatusString(cublasStatus_t status) {
  return status == CUBLAS_STATUS_NOT_SUPPORTED ? "not supported" : "another status";
}
STAND_IN cublasStatus_t cublasLtMatmulDescCreate(cublasLtMatmulDesc_t* how, cublasComputeType_t compute,
                                                 cudaDataType_t scale) {
  *how = reinterpret_cast<cublasLtMatmulDesc_t>(new How());
  return compute == CUBLAS_COMPUTE_32F && scale == CUDA_R_32F ? CUBLAS_STATUS_SUCCESS : CUBLAS_STATUS_INVALID_VALUE;
}
STAND_IN cublasStatus_t cublasLtMatmulDescSetAttribute(cublasLtMatmulDesc_t desc,
                                                       cublasLtMatmulDescAttributes_t attribute, const void* value,
                                                       std::size_t bytes) {
  auto& how = *reinterpret_cast<How*>(desc);
  const auto set = [&](auto& member) {
    if (bytes != sizeof member) return CUBLAS_STATUS_INVALID_VALUE;
    std::memcpy(&member, value, bytes);
    return CUBLAS_STATUS_SUCCESS;
  };
  switch (attribute) {
    case CUBLASLT_MATMUL_DESC_TRANSA:
      return set(how.of_a);
    case CUBLASLT_MATMUL_DESC_TRANSB:
      return set(how.of_b);
    case CUBLASLT_MATMUL_DESC_EPILOGUE:
      return set(how.epilogue);
    case CUBLASLT_MATMUL_DESC_BIAS_POINTER:
      return set(how.bias);
    case CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_POINTER:
      return set(how.aux);
    case CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_LD:
      return set(how.aux_stride);
    default:
      return CUBLAS_STATUS_INVALID_VALUE;
  }
}
STAND_IN cublasStatus_t cublasLtMatrixLayoutCreate(cublasLtMatrixLayout_t* layout, cudaDataType type,
                                                   std::uint64_t rows, std::uint64_t columns, std::int64_t stride) {
  *layout = reinterpret_cast<cublasLtMatrixLayout_t>(new Layout{rows, columns, stride});
  return type == CUDA_R_16BF && stride >= static_cast<std::int64_t>(rows) ? CUBLAS_STATUS_SUCCESS
                                                                          : CUBLAS_STATUS_INVALID_VALUE;
}
STAND_IN cublasStatus_t cublasLtMatmulPreferenceCreate(cublasLtMatmulPreference_t* wanted) {
  *wanted = reinterpret_cast<cublasLtMatmulPreference_t>(new int());
  return CUBLAS_STATUS_SUCCESS;
}
STAND_IN cublasStatus_t cublasLtMatmulPreferenceDestroy(cublasLtMatmulPreference_t wanted) {
  delete reinterpret_cast<int*>(wanted);
  return CUBLAS_STATUS_SUCCESS;
}
STAND_IN cublasStatus_t cublasLtMatmulPreferenceSetAttribute(cublasLtMatmulPreference_t,
                                                             cublasLtMatmulPreferenceAttributes_t attribute,
                                                             const void*, std::size_t bytes) {
  const bool is_size = attribute == CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES;
  return bytes == (is_size ? sizeof(std::uint64_t) : sizeof(std::uint32_t)) ? CUBLAS_STATUS_SUCCESS
                                                                            : CUBLAS_STATUS_INVALID_VALUE;
}
STAND_IN cublasStatus_t cublasLtMatmulAlgoGetHeuristic(cublasLtHandle_t, cublasLtMatmulDesc_t, cublasLtMatrixLayout_t,
                                                       cublasLtMatrixLayout_t, cublasLtMatrixLayout_t,
                                                       cublasLtMatrixLayout_t, cublasLtMatmulPreference_t, int,
                                                       cublasLtMatmulHeuristicResult_t results[], int* count) {
  ++cublas_lt_test::choices;
  *count = cublas_lt_test::has_algorithm ? 1 : 0;
  results[0].state = CUBLAS_STATUS_SUCCESS;
  return CUBLAS_STATUS_SUCCESS;
}
STAND_IN cublasStatus_t cublasLtMatmul(cublasLtHandle_t, cublasLtMatmulDesc_t desc, const void* alpha, const void* a,
                                       cublasLtMatrixLayout_t of_a, const void* b, cublasLtMatrixLayout_t of_b,
                                       const void* beta, const void*, cublasLtMatrixLayout_t, void* d,
                                       cublasLtMatrixLayout_t of_d, const cublasLtMatmulAlgo_t*, void*, std::size_t,
                                       cudaStream_t) {
  using cublas_lt_test::number;
  using cublas_lt_test::put;
  const auto& how = *reinterpret_cast<const How*>(desc);
  const auto layout = [](cublasLtMatrixLayout_t of) { return *reinterpret_cast<const Layout*>(of); };
  const auto A = layout(of_a), B = layout(of_b), D = layout(of_d);
  const bool turns_a = how.of_a == CUBLAS_OP_T, turns_b = how.of_b == CUBLAS_OP_T;
  const auto inner = turns_a ? A.rows : A.columns;
  if ((turns_a ? A.columns : A.rows) != D.rows || (turns_b ? B.rows : B.columns) != D.columns ||
      (turns_b ? B.columns : B.rows) != inner || *static_cast<const float*>(alpha) != 1 ||
      *static_cast<const float*>(beta) != 0) {
    return CUBLAS_STATUS_INVALID_VALUE;
  }
  const auto at = [](const void* from, const Layout& of, bool turns, std::uint64_t i, std::uint64_t k) {
    return number(from,
                  static_cast<std::int64_t>(turns ? k : i) + of.stride * static_cast<std::int64_t>(turns ? i : k));
  };
  const auto has = [&](cublasLtEpilogue_t kind) { return how.epilogue == kind; };
  const bool adds = has(CUBLASLT_EPILOGUE_BIAS) || has(CUBLASLT_EPILOGUE_GELU_AUX_BIAS);
  const bool is_gelu = has(CUBLASLT_EPILOGUE_GELU_AUX) || has(CUBLASLT_EPILOGUE_GELU_AUX_BIAS);
  const bool is_slope = has(CUBLASLT_EPILOGUE_DGELU) || has(CUBLASLT_EPILOGUE_DGELU_BGRAD);
  for (std::uint64_t i = 0; i < D.rows; ++i) {
    double total = 0;
    for (std::uint64_t j = 0; j < D.columns; ++j) {
      double sum = adds ? number(how.bias, static_cast<std::int64_t>(i)) : 0;
      for (std::uint64_t k = 0; k < inner; ++k) sum += at(a, A, turns_a, i, k) * at(b, B, turns_b, k, j);
      const auto aux = static_cast<std::int64_t>(i) + how.aux_stride * static_cast<std::int64_t>(j);
      if (is_gelu) put(how.aux, aux, sum);
      const double x = is_slope ? number(how.aux, aux) : sum, inside = std::sqrt(2 / M_PI) * (x + 0.044715 * x * x * x);
      const double t = std::tanh(inside);
      if (is_gelu) sum = 0.5 * x * (1 + t);
      if (is_slope) sum *= 0.5 * (1 + t) + 0.5 * x * (1 - t * t) * std::sqrt(2 / M_PI) * (1 + 3 * 0.044715 * x * x);
      total += sum;
      put(d, static_cast<std::int64_t>(i) + D.stride * static_cast<std::int64_t>(j), sum);
    }
    if (has(CUBLASLT_EPILOGUE_DGELU_BGRAD)) put(how.bias, static_cast<std::int64_t>(i), total);
    if (has(CUBLASLT_EPILOGUE_BGRADA)) {
      double sums = 0;
      for (std::uint64_t k = 0; k < inner; ++k) sums += at(a, A, turns_a, i, k);
      put(how.bias, static_cast<std::int64_t>(i), sums);
    }
  }
  return CUBLAS_STATUS_SUCCESS;
}

namespace cublas_lt_test {

namespace {

using vernier::gpu::Product;

torch::Tensor matrix(std::int64_t rows, std::int64_t columns) {
  return at::randn({rows, columns}).to(torch::kBFloat16);
}

}  // namespace

TEST_CASE("cublasLt: each product is what the loops compute, and its algorithm is chosen once") {
  torch::manual_seed(14);
  vernier::gpu::CublasLt library(dlopen(nullptr, RTLD_LAZY));
  constexpr std::int64_t rows = 16, columns = 24, inner = 40;
  const auto bias = matrix(1, columns), inputs = matrix(rows, columns);
  for (const bool is_a_turned : {false, true}) {
    for (const bool is_b_turned : {false, true}) {
      for (int what = 0; what < 6; ++what) {
        const auto a = is_a_turned ? matrix(inner, rows) : matrix(rows, inner);
        const auto b = is_b_turned ? matrix(columns, inner) : matrix(inner, columns);
        std::array<torch::Tensor, 3> of_stand_in, of_loops;
        const auto compute = [&](auto& to, const auto& multiply) {
          to = {matrix(rows, columns), at::zeros({rows, columns}, torch::kBFloat16),
                at::zeros({columns}, torch::kBFloat16)};
          Product product{};
          product.kind = vernier::gpu::Kind::bfloat16;
          product.rows = rows;
          product.columns = columns;
          product.inner = inner;
          product.is_a_turned = is_a_turned;
          product.is_b_turned = is_b_turned;
          product.a = a.const_data_ptr();
          product.b = b.const_data_ptr();
          if (what == 1 || what == 2) product.bias = bias.const_data_ptr();
          if (what == 2 || what == 3) product.inputs_of_gelu = to[1].mutable_data_ptr();
          if (what == 4) product.slopes_of_gelu = inputs.const_data_ptr();
          if (what >= 4) product.sums = to[2].mutable_data_ptr();
          product.to = to[0].mutable_data_ptr();
          REQUIRE(multiply(product) == nullptr);
        };
        choices = 0;
        for (int time = 0; time < 2; ++time)
          compute(of_stand_in, [&](const Product& product) { return library.multiply(product, nullptr); });
        CHECK(choices == 1);
        compute(of_loops, [](const Product& product) { return vernier_cuda.multiply(product, nullptr); });
        for (std::size_t i = 0; i < 3; ++i) CHECK(at::allclose(of_stand_in[i], of_loops[i], 1e-2, 1e-2));
      }
    }
  }
}

TEST_CASE("cublasLt: a product without an algorithm, and a library without functions, say so") {
  const auto a = matrix(8, 8), to = matrix(8, 8);
  Product product{};
  product.kind = vernier::gpu::Kind::bfloat16;
  product.rows = product.columns = product.inner = 8;
  product.a = product.b = a.const_data_ptr();
  product.to = to.mutable_data_ptr();
  has_algorithm = false;
  CHECK(std::string(vernier::gpu::CublasLt(dlopen(nullptr, RTLD_LAZY)).multiply(product, nullptr)) == "not supported");
  has_algorithm = true;
  CHECK(std::string(vernier::gpu::CublasLt(nullptr).multiply(product, nullptr)).ends_with("lacks a function"));
}

}  // namespace cublas_lt_test

#endif
