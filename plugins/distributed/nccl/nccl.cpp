// The library of nccl_library.h. Its symbols of CUDA, NCCL and LibTorch's CUDA half are found when it is opened.
#include "../ddp/nccl_library.h"

#define USE_C10D_NCCL
#include <cuda_runtime_api.h>
#include <torch/csrc/cuda/nccl.h>
#include <vernier/abi.h>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>
#include <torch/csrc/distributed/c10d/ProcessGroupNCCL.hpp>

#include <cstdlib>

namespace {

std::int64_t version_of_libtorch() {
  const auto version = torch::cuda::nccl::version();  // 16 bits each for the parts of 2.28.9
  return NCCL_VERSION(static_cast<std::int64_t>(version >> 32), static_cast<std::int64_t>(version >> 16 & 0xFFFF),
                      static_cast<std::int64_t>(version & 0xFFFF));
}

std::string bus_id(int gpu) {
  char id[32] = {};
  C10_CUDA_CHECK(cudaDeviceGetPCIBusId(id, sizeof id, gpu));
  return id;
}

// A rank that fails ends with an error of Vernier's. c10d's own thread would abort the communicator, so that what waits
// ends as if it were complete, or the process (see c10d::ErrorHandlingMode). torchrun asks for the latter.
c10::intrusive_ptr<c10d::Backend> open(const c10::intrusive_ptr<c10d::Store>& store, int rank, int ranks,
                                       std::chrono::milliseconds timeout) {
  ::setenv("TORCH_NCCL_ASYNC_ERROR_HANDLING", std::to_string(c10d::NoHandling).c_str(), /*overwrite=*/1);
  ::setenv("TORCH_NCCL_DUMP_ON_TIMEOUT", "0", /*overwrite=*/0);
  const auto options = c10d::ProcessGroupNCCL::Options::create();
  options->timeout = timeout;
  return c10::make_intrusive<c10d::ProcessGroupNCCL>(c10::make_intrusive<c10d::PrefixStore>("nccl", store), rank, ranks,
                                                     options);
}

}  // namespace

extern "C" VERNIER_API const ddp::NcclLibrary vernier_nccl;
const ddp::NcclLibrary vernier_nccl{VERNIER_ABI, NCCL_VERSION_CODE, version_of_libtorch, bus_id, open};
