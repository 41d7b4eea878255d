// multiply() by cuBLASLt, which stores matrices by columns. A matrix by rows is its own transpose there, so it computes
// the transpose of b times that of a, which is the transpose of the product.
#pragma once

#include <cublasLt.h>
#include <cuda_runtime_api.h>
#include <dlfcn.h>

#include <map>
#include <mutex>
#include <string>
#include <tuple>
#include <utility>

#include "../core/gpu/library.h"

namespace vernier::gpu {

namespace {

// The functions of the library, and what was chosen for the products until now.
class CublasLt {
 public:
  explicit CublasLt(void* library) : library_(library) {}

  Trouble multiply(const Product& product, cudaStream_t stream) {
    if (!is_complete_)
      return "libcublasLt.so, of the major version with which Vernier was built, is not loaded or lacks a function";
    const std::lock_guard guard(mutex_);
    int device = 0;
    if (cudaGetDevice(&device) != cudaSuccess) return "there is no current device";
    auto& handle = handles_[device];
    if (handle == nullptr) {
      if (const auto status = create_(&handle); status != CUBLAS_STATUS_SUCCESS) return text_(status);
    }
    const auto epilogue = epilogue_of(product);
    const Key key{device,        product.kind,          product.rows,        product.columns,
                  product.inner, product.scratch_bytes, product.is_a_turned, product.is_b_turned,
                  epilogue};
    auto found = plans_.find(key);
    if (found == plans_.end()) {
      Plan plan;
      if (const auto status = make(plan, handle, product, epilogue); status != CUBLAS_STATUS_SUCCESS)
        return text_(status);
      found = plans_.emplace(key, plan).first;
    }
    const auto& plan = found->second;
    if (const auto status = point(plan, product); status != CUBLAS_STATUS_SUCCESS) return text_(status);
    const float one = 1, zero = 0;
    const auto status =
        multiply_(handle, plan.how, &one, product.b, plan.b, product.a, plan.a, &zero, product.to, plan.to, product.to,
                  plan.to, &plan.algorithm, product.scratch, static_cast<std::size_t>(product.scratch_bytes), stream);
    return status == CUBLAS_STATUS_SUCCESS ? nullptr : text_(status);
  }

 private:
  using Key =
      std::tuple<int, Kind, std::int64_t, std::int64_t, std::int64_t, std::int64_t, bool, bool, cublasLtEpilogue_t>;
  struct Plan {
    cublasLtMatmulDesc_t how = nullptr;
    cublasLtMatrixLayout_t a = nullptr, b = nullptr, to = nullptr;
    cublasLtMatmulAlgo_t algorithm{};
  };

  static cublasLtEpilogue_t epilogue_of(const Product& product) {
    if (product.inputs_of_gelu != nullptr) {
      return product.bias != nullptr ? CUBLASLT_EPILOGUE_GELU_AUX_BIAS : CUBLASLT_EPILOGUE_GELU_AUX;
    }
    if (product.slopes_of_gelu != nullptr) {
      return product.sums != nullptr ? CUBLASLT_EPILOGUE_DGELU_BGRAD : CUBLASLT_EPILOGUE_DGELU;
    }
    if (product.sums != nullptr) return CUBLASLT_EPILOGUE_BGRADA;
    return product.bias != nullptr ? CUBLASLT_EPILOGUE_BIAS : CUBLASLT_EPILOGUE_DEFAULT;
  }

  template <class Value>
  cublasStatus_t set(const Plan& plan, cublasLtMatmulDescAttributes_t attribute, const Value& value) const {
    return set_(plan.how, attribute, &value, sizeof value);
  }

  // Sets the addresses that belong to a call.
  cublasStatus_t point(const Plan& plan, const Product& product) const {
    const void* const of_columns = product.sums != nullptr ? product.sums : product.bias;
    const void* const of_gelu = product.inputs_of_gelu != nullptr ? product.inputs_of_gelu : product.slopes_of_gelu;
    auto status = CUBLAS_STATUS_SUCCESS;
    if (of_columns != nullptr) status = set(plan, CUBLASLT_MATMUL_DESC_BIAS_POINTER, of_columns);
    if (of_gelu == nullptr || status != CUBLAS_STATUS_SUCCESS) return status;
    status = set(plan, CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_POINTER, of_gelu);
    return status == CUBLAS_STATUS_SUCCESS ? set(plan, CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_LD, product.columns) : status;
  }

  // Chooses an algorithm. If there is none, the descriptors are not freed. The caller does not ask again for that
  // shape.
  cublasStatus_t make(Plan& plan, cublasLtHandle_t handle, const Product& product, cublasLtEpilogue_t epilogue) const {
    const auto type = product.kind == Kind::bfloat16 ? CUDA_R_16BF : CUDA_R_16F;
    const auto turned = CUBLAS_OP_T;
    auto status = make_how_(&plan.how, CUBLAS_COMPUTE_32F, CUDA_R_32F);
    const auto then = [&](const auto& next) {
      if (status == CUBLAS_STATUS_SUCCESS) status = next();
    };
    const auto layout = [&](cublasLtMatrixLayout_t& to, bool is_turned, std::int64_t rows, std::int64_t columns) {
      if (is_turned) std::swap(rows, columns);
      then([&] {
        return make_layout_(&to, type, static_cast<std::uint64_t>(rows), static_cast<std::uint64_t>(columns), rows);
      });
    };
    then([&] { return set(plan, CUBLASLT_MATMUL_DESC_EPILOGUE, epilogue); });
    if (product.is_b_turned) then([&] { return set(plan, CUBLASLT_MATMUL_DESC_TRANSA, turned); });
    if (product.is_a_turned) then([&] { return set(plan, CUBLASLT_MATMUL_DESC_TRANSB, turned); });
    then([&] { return point(plan, product); });
    layout(plan.b, product.is_b_turned, product.columns, product.inner);
    layout(plan.a, product.is_a_turned, product.inner, product.rows);
    layout(plan.to, false, product.columns, product.rows);
    cublasLtMatmulPreference_t wanted = nullptr;
    then([&] { return make_preference_(&wanted); });
    const auto want = [&](cublasLtMatmulPreferenceAttributes_t attribute, const auto& value) {
      then([&] { return prefer_(wanted, attribute, &value, sizeof value); });
    };
    want(CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, static_cast<std::uint64_t>(product.scratch_bytes));
    for (const auto matrix : {CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES,
                              CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES}) {
      want(matrix, std::uint32_t{16});
    }
    cublasLtMatmulHeuristicResult_t best{};
    int count = 0;
    then([&] { return choose_(handle, plan.how, plan.b, plan.a, plan.to, plan.to, wanted, 1, &best, &count); });
    if (wanted != nullptr) drop_preference_(wanted);
    then([&] { return count > 0 ? best.state : CUBLAS_STATUS_NOT_SUPPORTED; });
    plan.algorithm = best.algo;
    return status;
  }

  // The address of a function of the library. It converts to a pointer to any type of function.
  struct Named {
    void* address;
    template <class Function>
    operator Function*() const {
      return reinterpret_cast<Function*>(address);
    }
  };
  Named named(const char* name) {
    void* const address = library_ != nullptr ? dlsym(library_, name) : nullptr;
    is_complete_ = is_complete_ && address != nullptr;
    return {address};
  }

  void* library_;
  bool is_complete_ = true;
  decltype(&cublasLtCreate) create_ = named("cublasLtCreate");
  decltype(&cublasLtGetStatusString) text_ = named("cublasLtGetStatusString");
  decltype(&cublasLtMatmul) multiply_ = named("cublasLtMatmul");
  decltype(&cublasLtMatmulAlgoGetHeuristic) choose_ = named("cublasLtMatmulAlgoGetHeuristic");
  decltype(&cublasLtMatmulDescCreate) make_how_ = named("cublasLtMatmulDescCreate");
  decltype(&cublasLtMatmulDescSetAttribute) set_ = named("cublasLtMatmulDescSetAttribute");
  decltype(&cublasLtMatrixLayoutCreate) make_layout_ = named("cublasLtMatrixLayoutCreate");
  decltype(&cublasLtMatmulPreferenceCreate) make_preference_ = named("cublasLtMatmulPreferenceCreate");
  decltype(&cublasLtMatmulPreferenceDestroy) drop_preference_ = named("cublasLtMatmulPreferenceDestroy");
  decltype(&cublasLtMatmulPreferenceSetAttribute) prefer_ = named("cublasLtMatmulPreferenceSetAttribute");
  std::mutex mutex_;
  std::map<int, cublasLtHandle_t> handles_;
  std::map<Key, Plan> plans_;
};

}  // namespace

}  // namespace vernier::gpu
