// Counts the bytes of a device's tensors, and limits them.
//
//   vernier::limit_memory(torch::kCPU, 2'000'000'000);
//   try { train(batch); } catch (...) {
//     if (!vernier::is_out_of_memory(std::current_exception())) throw;
//     train_in_halves(batch);
//   }
#pragma once

#include <vernier/abi.h>
#include <vernier/tensor.h>

#include <cstdint>
#include <exception>
#include <string>

namespace vernier {

// The bytes that LibTorch's allocator has given out and not got back: as requested on a CPU, rounded up to 512 on a
// GPU. They do not include what libraries allocate themselves (oneDNN's scratch) or what a GPU's allocator caches.
struct Allocated {
  std::int64_t now = 0;
  std::int64_t peak = 0;  // since reset_peak_memory()
};

// Makes LibTorch's CPU allocator count from now on, for about 100 ns an allocation. Memory of weights read from a file
// counts too; tensors made before do not. So call it before the first tensor. Does nothing for a GPU, where LibTorch
// counts. Any thread.
VERNIER_API void count_memory(torch::Device device);
VERNIER_API Allocated allocated_memory(torch::Device device);
VERNIER_API void reset_peak_memory(torch::Device device);
VERNIER_API std::int64_t highest_memory(torch::Device device);  // a GPU's peak since the start, ignoring resets

// Limits the bytes of all tensors; 0 removes the limit, and others call count_memory(). On a CPU, an allocation beyond
// the limit throws c10::OutOfMemoryError, as on a full GPU, and only the current computation is lost. From the first
// call on, so does one of 64 MiB or more that free_memory() does not have. On a GPU nothing enforces the limit: compare
// allocated_memory() with memory_limit().
VERNIER_API void limit_memory(torch::Device device, std::int64_t bytes);
VERNIER_API std::int64_t memory_limit(torch::Device device);  // 0: no limit

// Returns how many more bytes tensors can take: what the limit leaves, but not more than the system has. On a GPU, this
// is its free memory and LibTorch's cache. On a CPU, it is the least of three: what is left of the machine's memory, of
// the control group's (cgroup v1 and v2), and of `ulimit -v`.
VERNIER_API std::int64_t free_memory(torch::Device device);

// Returns whether an exception, or one nested in it, says that the memory of a GPU, of a CPU or of a limit ran out.
VERNIER_API bool is_out_of_memory(const std::exception_ptr& exception);

// Parses "2GB", "512MB", "80%" of `whole`, or plain bytes. Throws Error::Kind::configuration for other texts.
VERNIER_API std::int64_t bytes_of(const std::string& text, std::int64_t whole);
// Returns the total memory of a device; for a CPU that of the machine, or of the control group if that is less.
VERNIER_API std::int64_t device_memory(torch::Device device);
VERNIER_API std::string memory_text(std::int64_t bytes);  // "950 B", "1.23 kB", "45.6 MB"

}  // namespace vernier
