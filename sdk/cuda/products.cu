// Products of matrices by cuBLASLt, of the library that LibTorch has opened. Also compiled for the host
// (host_library.cpp), where plain loops compute them.
#include "functions.h"
#include "kinds.h"

#if defined(__CUDACC__)
#if __has_include(<cublasLt.h>)
#include "cublas_lt.h"
namespace vernier::gpu {
Trouble multiply(const Product& product, Stream stream) {
  // Never closed: a thread may use it when the process ends.
  static auto* const library =
      new CublasLt(dlopen(("libcublasLt.so." + std::to_string(CUBLAS_VER_MAJOR)).c_str(), RTLD_LAZY | RTLD_NOLOAD));
  return library->multiply(product, static_cast<cudaStream_t>(stream));
}
}  // namespace vernier::gpu
#else
namespace vernier::gpu {
Trouble multiply(const Product&, Stream) {
  return "Vernier was built without the header cublasLt.h";
}
}  // namespace vernier::gpu
#endif
#else

namespace vernier::gpu {

namespace {

// GELU by tanh, and its derivative.
float gelu(float x) {
  return 0.5F * x * (1 + std::tanh(0.7978845608F * (x + 0.044715F * x * x * x)));
}
float slope_of_gelu(float x) {
  const float t = std::tanh(0.7978845608F * (x + 0.044715F * x * x * x));
  return 0.5F * (1 + t) + 0.5F * x * (1 - t * t) * 0.7978845608F * (1 + 3 * 0.044715F * x * x);
}

}  // namespace

Trouble multiply(const Product& product, Stream) {
  return with_kind(product.kind, [&](auto kind) -> Trouble {
    using Numbers = decltype(kind);
    const auto number = [](const void* matrix, std::int64_t i) {
      return Numbers::wide(static_cast<const typename Numbers::Number*>(matrix)[i]);
    };
    const auto put = [](void* matrix, std::int64_t i, float x) {
      static_cast<typename Numbers::Number*>(matrix)[i] = Numbers::narrow(x);
    };
    const std::int64_t rows = product.rows, columns = product.columns, inner = product.inner;
    const auto of_a = [&](std::int64_t i, std::int64_t k) {
      return number(product.a, product.is_a_turned ? k * rows + i : i * inner + k);
    };
    const auto of_b = [&](std::int64_t k, std::int64_t j) {
      return number(product.b, product.is_b_turned ? j * inner + k : k * columns + j);
    };
    for (std::int64_t j = 0; j < columns; ++j) {
      float total = 0;
      for (std::int64_t i = 0; i < rows; ++i) {
        float sum = product.bias != nullptr ? number(product.bias, j) : 0.0F;
        for (std::int64_t k = 0; k < inner; ++k) sum += of_a(i, k) * of_b(k, j);
        const std::int64_t place = i * columns + j;
        if (product.inputs_of_gelu != nullptr) {
          put(product.inputs_of_gelu, place, sum);
          sum = gelu(sum);
        }
        if (product.slopes_of_gelu != nullptr) sum *= slope_of_gelu(number(product.slopes_of_gelu, place));
        total += sum;
        put(product.to, place, sum);
      }
      if (product.slopes_of_gelu == nullptr) {
        total = 0;
        for (std::int64_t k = 0; k < inner; ++k) total += of_b(k, j);
      }
      if (product.sums != nullptr) put(product.sums, j, total);
    }
    return nullptr;
  });
}

}  // namespace vernier::gpu
#endif
