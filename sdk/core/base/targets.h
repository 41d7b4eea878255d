// Sets of instructions by function, for plain loops that the compiler turns into vectors of each set.
#pragma once

#define VERNIER_INLINE inline __attribute__((always_inline))
#define VERNIER_AVX512 __attribute__((target("avx512f,avx512bw,avx512cd,avx512dq,avx512vl,fma")))
#define VERNIER_AVX2 __attribute__((target("avx2,fma")))
