// How many bytes the tensors of a device take, and a limit to them.
//
//   vernier::limit_memory(torch::kCPU, 2'000'000'000);
//   try { train(batch); } catch (...) {
//     if (!vernier::is_out_of_memory(std::current_exception())) throw;
//     train_in_halves(batch);
//   }
#pragma once

#include <torch/types.h>
#include <vernier/abi.h>

#include <cstdint>
#include <exception>
#include <string>

namespace vernier {

// What LibTorch's allocator has given out and not got back: as asked for on a CPU, rounded up to 512 on a GPU. What
// libraries allocate for themselves (oneDNN's scratch), and memory that is kept for later on a GPU, is not in it.
struct Allocated {
  std::int64_t now = 0;
  std::int64_t peak = 0;  // since reset_peak_memory()
};

// LibTorch does not count on a CPU: from the first call on its allocator does, for some 100 ns each time. Weights that were read from a file count too. Tensors that are
// older stay uncounted. Does nothing on a GPU, where LibTorch counts. Any thread; best before the first tensor.
VERNIER_API void count_memory(torch::Device device);
VERNIER_API Allocated allocated_memory(torch::Device device);
VERNIER_API void reset_peak_memory(torch::Device device);
VERNIER_API std::int64_t highest_memory(torch::Device device);  // of a GPU: the peak since the start, resets aside

// On a CPU whoever asks for more than `bytes` in all gets c10::OutOfMemoryError, as on a full GPU, and nothing is lost but
// what was being computed; counts from now on. On a GPU LibTorch is not in the way of more: compare allocated_memory().
// 0: no limit.
VERNIER_API void limit_memory(torch::Device device, std::int64_t bytes);
VERNIER_API std::int64_t memory_limit(torch::Device device);  // 0 where there is none

// How many more bytes tensors can have: up to the limit, and not more than the system gives: the free memory of the GPU and of
// LibTorch's cache; on a CPU the least of the machine's, the control group's (cgroup v1 and v2) and that of `ulimit -v`.
VERNIER_API std::int64_t free_memory(torch::Device device);

// Whether an exception, or one nested in it, is memory that ran out, of a GPU, a CPU or a limit.
VERNIER_API bool is_out_of_memory(const std::exception_ptr& exception);

// "2GB", "512MB", "80%" of `whole`, or plain bytes. Throws Error::Kind::configuration where it is none of them.
VERNIER_API std::int64_t bytes_of(const std::string& text, std::int64_t whole);
// All memory of a device; of a CPU that of the machine, or of the control group where that is less.
VERNIER_API std::int64_t device_memory(torch::Device device);
VERNIER_API std::string memory_text(std::int64_t bytes);  // "950 B", "1.23 kB", "45.6 MB"

}  // namespace vernier
