// The instructions that a function of a kernel is compiled for, whatever the rest of the program is.
#pragma once

#define VERNIER_INLINE inline __attribute__((always_inline))

#if defined(__x86_64__)
#define VERNIER_AVX512 __attribute__((target("avx512f,avx512bw,avx512dq,avx512vl,avx512cd")))
#define VERNIER_AVX2 __attribute__((target("avx2")))
#else
#define VERNIER_AVX512
#define VERNIER_AVX2
#endif
