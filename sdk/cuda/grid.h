// A grid of threads whose code compiles for a GPU and for the host. A kernel is a struct: its members are the
// arguments, operator() is the code of one block. Both compilers get the same source, so tests without a GPU run it.
//
//   struct Twice {
//     static constexpr unsigned threads = 256;
//     struct Shared {};  // memory of a block
//     float* numbers;
//     template <class Block>
//     VERNIER_BOTH void operator()(const Block& block, Shared&) const {
//       block.each([&](unsigned thread) { numbers[block.index * threads + thread] *= 2; });
//     }
//   };
//   launch(Twice{numbers}, blocks, stream);
//
// Code outside each() must be the same for all threads of a block, and writes nothing.
#pragma once

#include <cmath>
#include <cstdint>
#include <cstring>

#include "../core/gpu/library.h"

#if defined(__CUDACC__)
#define VERNIER_BOTH __host__ __device__ __forceinline__
#else
#define VERNIER_BOTH inline
#endif
#if defined(__CUDA_ARCH__)
#define VERNIER_UNROLL _Pragma("unroll")
#else
#define VERNIER_UNROLL
#endif

namespace vernier::gpu {

// A type's bits as those of another one; std::bit_cast is C++20.
template <class To, class From>
VERNIER_BOTH To bits_as(const From& from) {
  static_assert(sizeof(To) == sizeof(From));
  To to;
  memcpy(&to, &from, sizeof(To));
  return to;
}

VERNIER_BOTH bool is_nan(float x) {
  return x != x;
}
VERNIER_BOTH float multiply_add(float a, float b, float c) {
  return fmaf(a, b, c);
}  // rounds once
VERNIER_BOTH std::int64_t least(std::int64_t a, std::int64_t b) {
  return a < b ? a : b;
}

// The order in which the host runs the threads of a block. Tests turn it around: no result may depend on it.
#if !defined(__CUDACC__)
inline thread_local bool threads_run_backwards = false;
#endif

// One block of a grid on a GPU, where each thread runs the code.
template <unsigned count>
struct DeviceBlock {
  unsigned index;  // index of the block

  // Calls body(thread) for each thread, and waits for all of them.
  template <class Body>
  VERNIER_BOTH void each(const Body& body) const {
#if defined(__CUDA_ARCH__)
    body(threadIdx.x);
    __syncthreads();
#endif
  }

  // Calls body(group, member) for each group of 32 threads.
  static constexpr unsigned members = 32, groups = count / members;
  template <class Body>
  VERNIER_BOTH void each_group(const Body& body) const {
#if defined(__CUDA_ARCH__)
    body(threadIdx.x / members, threadIdx.x % members);
    __syncthreads();
#endif
  }
  // The sum of the numbers of a group's members, which all of them get.
  static VERNIER_BOTH float sum_of_group(float number) {
#if defined(__CUDA_ARCH__)
    for (int distance = members / 2; distance > 0; distance /= 2) {
      number += __shfl_xor_sync(0xffffffff, number, distance);
    }
#endif
    return number;
  }
  // The largest number of the members of a group.
  static VERNIER_BOTH std::uint32_t largest_of_group(std::uint32_t number) {
#if defined(__CUDA_ARCH__)
    return __reduce_max_sync(0xffffffff, number);
#else
    return number;
#endif
  }
};

// The same on the host, where one thread runs the code for all. A group has one member, which does the work of 32.
template <unsigned count>
struct HostBlock {
  unsigned index;

  template <class Body>
  void each(const Body& body) const {
#if !defined(__CUDACC__)
    for (unsigned i = 0; i < count; ++i) body(threads_run_backwards ? count - 1 - i : i);
#endif
  }
  static constexpr unsigned members = 1, groups = count / 32;
  template <class Body>
  void each_group(const Body& body) const {
#if !defined(__CUDACC__)
    for (unsigned i = 0; i < groups; ++i) body(threads_run_backwards ? groups - 1 - i : i, 0U);
#endif
  }
  static float sum_of_group(float number) {
    return number;
  }
  static std::uint32_t largest_of_group(std::uint32_t number) {
    return number;
  }
};

// Sums one number of each thread, in the order of a tree. values: `threads` of them in shared memory, a power of two.
template <unsigned threads, class Block, class Number>
VERNIER_BOTH void sum_in_block(const Block& block, Number* values) {
  for (unsigned half = threads / 2; half > 0; half /= 2) {
    block.each([&](unsigned thread) {
      if (thread < half) values[thread] += values[thread + half];
    });
  }
}

#if defined(__CUDACC__)
template <class Kernel>
__global__ void __launch_bounds__(Kernel::threads) run(const __grid_constant__ Kernel kernel) {
  __shared__ typename Kernel::Shared shared;
  kernel(DeviceBlock<Kernel::threads>{blockIdx.x}, shared);
}

template <class Kernel>
Trouble launch(const Kernel& kernel, std::int64_t blocks, Stream stream) {
  if (blocks == 0) return nullptr;
  run<<<static_cast<unsigned>(blocks), Kernel::threads, 0, static_cast<cudaStream_t>(stream)>>>(kernel);
  const auto status = cudaGetLastError();
  return status == cudaSuccess ? nullptr : cudaGetErrorString(status);
}
#else
template <class Kernel>
Trouble launch(const Kernel& kernel, std::int64_t blocks, Stream) {
  for (std::int64_t i = 0; i < blocks; ++i) {
    typename Kernel::Shared shared;
    std::memset(static_cast<void*>(&shared), 0xff, sizeof shared);  // NaN: nothing may be read before it is written
    kernel(HostBlock<Kernel::threads>{static_cast<unsigned>(i)}, shared);
  }
  return nullptr;
}
#endif

}  // namespace vernier::gpu
