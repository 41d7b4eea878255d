// NCCL, by c10d's ProcessGroupNCCL. It is in a library of its own, built where NCCL's headers and CUDA's are found, and
// opened only by ranks that train on GPUs.
#pragma once

#include <c10/util/intrusive_ptr.h>

#include <chrono>
#include <cstdint>
#include <filesystem>
#include <string>

namespace c10d {
class Backend;
class Store;
}  // namespace c10d

namespace ddp {

// The library exports this as the symbol vernier_nccl.
struct NcclLibrary {
  std::uint64_t abi;      // VERNIER_ABI
  std::int64_t compiled;  // the version of NCCL's headers, as 22809 for 2.28.9
  // The version of NCCL's headers with which LibTorch was compiled. ProcessGroupNCCL's members depend on it.
  std::int64_t (*libtorchs)();
  std::string (*bus_id)(int gpu);  // "0000:3B:00.0"; the same for the same GPU in each process of a machine
  c10::intrusive_ptr<c10d::Backend> (*open)(const c10::intrusive_ptr<c10d::Store>& store, int rank, int ranks,
                                            std::chrono::milliseconds timeout);
};

// Beside the program, or in lib/ of an installed Vernier.
std::filesystem::path nccl_file();

// Call it once LibTorch's CUDA library is open. It stays mapped. Throws vernier::Error whose text says why the library
// cannot be used.
const NcclLibrary& open_nccl_library(const std::filesystem::path& file);

}  // namespace ddp
