// The table that the library exports.
#include "../core/gpu/library.h"

#include "functions.h"
#include "grid.h"

namespace vernier::gpu {

namespace {

#if defined(__CUDACC__)
// A kernel that has no code for the device of this thread cannot be asked for its attributes.
struct Nothing {
  static constexpr unsigned threads = 32;
  struct Shared {};
  template <class Block>
  VERNIER_BOTH void operator()(const Block&, Shared&) const {}
};
Trouble trouble_here() {
  cudaFuncAttributes attributes{};
  const auto status = cudaFuncGetAttributes(&attributes, run<Nothing>);
  if (status == cudaSuccess) return nullptr;
  cudaGetLastError();  // forgets it: LibTorch would find it after its own next call
  return cudaGetErrorString(status);
}
#else
Trouble trouble_here() {
  return nullptr;
}
#endif

}  // namespace

}  // namespace vernier::gpu

extern "C" __attribute__((visibility("default"))) const vernier::gpu::Library vernier_cuda;
const vernier::gpu::Library vernier_cuda = {VERNIER_CUDA_LAYOUT,
                                            vernier::gpu::trouble_here,
                                            vernier::gpu::adam,
                                            vernier::gpu::lion,
                                            vernier::gpu::sgd,
                                            vernier::gpu::inspection_scratch,
                                            vernier::gpu::inspect,
                                            vernier::gpu::cast_to_float8,
                                            vernier::gpu::transpose_bytes,
                                            vernier::gpu::softmax_sums,
                                            vernier::gpu::softmax_slopes,
                                            vernier::gpu::norm,
                                            vernier::gpu::norm_slopes,
                                            vernier::gpu::multiply,
                                            vernier::gpu::round_weights};
