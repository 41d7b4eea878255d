#include "source.h"

namespace vernier::compile {

// The head of every program: products, sums and functions, as templates of their shapes. Its sums have a fixed order.
const char* const prelude = R"prelude(// Written by Vernier: forward and backward of one shape of micro-batches.
#include <cstring>

using Call = void (*)(void* program, long number);
template <class T>
T* inside(char* arena, long at) { return reinterpret_cast<T*>(__builtin_assume_aligned(arena, 64)) + at; }
template <class T>
T* outside(void* memory, long at) { return static_cast<T*>(memory) + at; }
#define LOOP _Pragma("GCC ivdep") for
#define SUM(variable) _Pragma(#variable) for

#ifdef __AVX512F__
constexpr int lanes = 16, tall = 8;
#else
constexpr int lanes = 8, tall = 4;
#endif
typedef float Vector __attribute__((vector_size(4 * lanes)));
typedef float Eight __attribute__((vector_size(32)));

template <int n>
inline Vector load(const float* from) {
  Vector to = {};
  __builtin_memcpy(&to, from, 4 * n);
  return to;
}
template <int n>
inline void store(float* to, Vector from) { __builtin_memcpy(to, &from, 4 * n); }

// Rows of c: the sums of a[row, k] b[k, column], of `wide` vectors, the last of which has n columns; added to `to`.
template <int high, int wide, int n, long K, long am, long ak, long bk, long cm, long im>
inline __attribute__((always_inline)) void tile(float* c, const float* a, const float* b, const float* to) {
  Vector sums[high][wide] = {};
  for (long k = 0; k < K; ++k) {
    Vector right[wide];
#pragma GCC unroll 8
    for (int v = 0; v < wide; ++v) right[v] = load<lanes>(b + k * bk + v * lanes);
#pragma GCC unroll 16
    for (int m = 0; m < high; ++m) {
      const float left = a[m * am + k * ak];
#pragma GCC unroll 8
      for (int v = 0; v < wide; ++v) sums[m][v] += left * right[v];
    }
  }
#pragma GCC unroll 16
  for (int m = 0; m < high; ++m) {
#pragma GCC unroll 8
    for (int v = 0; v + 1 < wide; ++v) {
      if (to) sums[m][v] += load<lanes>(to + m * im + v * lanes);
      store<lanes>(c + m * cm + v * lanes, sums[m][v]);
    }
    if (to) sums[m][wide - 1] += load<n>(to + m * im + (wide - 1) * lanes);
    store<n>(c + m * cm + (wide - 1) * lanes, sums[m][wide - 1]);
  }
}

template <int wide, int n, long M, long K, long am, long ak, long bk, long cm, long im>
void columns(float* c, const float* a, const float* b, const float* to) {
  long m = 0;
  for (; m + tall <= M; m += tall) {
    tile<tall, wide, n, K, am, ak, bk, cm, im>(c + m * cm, a + m * am, b, to ? to + m * im : to);
  }
  if constexpr (M % tall != 0) {
    tile<M % tall, wide, n, K, am, ak, bk, cm, im>(c + m * cm, a + m * am, b, to ? to + m * im : to);
  }
}

// Copies [8, 8], rows at a distance of `from_row`, so that rows become columns.
template <long from_row, long to_row>
inline void turn(const float* from, float* to) {
  Eight r[8], s[8];
#pragma GCC unroll 8
  for (int i = 0; i < 8; ++i) __builtin_memcpy(&r[i], from + i * from_row, 32);
#pragma GCC unroll 4
  for (int i = 0; i < 8; i += 2) {
    s[i] = __builtin_shufflevector(r[i], r[i + 1], 0, 8, 1, 9, 4, 12, 5, 13);
    s[i + 1] = __builtin_shufflevector(r[i], r[i + 1], 2, 10, 3, 11, 6, 14, 7, 15);
  }
#pragma GCC unroll 2
  for (int i = 0; i < 8; i += 4) {
    r[i] = __builtin_shufflevector(s[i], s[i + 2], 0, 1, 8, 9, 4, 5, 12, 13);
    r[i + 1] = __builtin_shufflevector(s[i], s[i + 2], 2, 3, 10, 11, 6, 7, 14, 15);
    r[i + 2] = __builtin_shufflevector(s[i + 1], s[i + 3], 0, 1, 8, 9, 4, 5, 12, 13);
    r[i + 3] = __builtin_shufflevector(s[i + 1], s[i + 3], 2, 3, 10, 11, 6, 7, 14, 15);
  }
#pragma GCC unroll 4
  for (int i = 0; i < 4; ++i) {
    s[i] = __builtin_shufflevector(r[i], r[i + 4], 0, 1, 2, 3, 8, 9, 10, 11);
    s[i + 4] = __builtin_shufflevector(r[i], r[i + 4], 4, 5, 6, 7, 12, 13, 14, 15);
  }
#pragma GCC unroll 8
  for (int i = 0; i < 8; ++i) __builtin_memcpy(to + i * to_row, &s[i], 32);
}

template <long K, long N, long bk, long bn, long row>
void pack(const float* b, float* to) {
  if constexpr (bn == 1) {
    for (long k = 0; k < K; ++k) __builtin_memcpy(to + k * row, b + k * bk, 4 * N);
  } else if constexpr (bk == 1) {
    for (long n = 0; n + 8 <= N; n += 8) {
      for (long k = 0; k + 8 <= K; k += 8) turn<bn, row>(b + n * bn + k, to + k * row + n);
    }
    for (long k = 0; k < K; ++k) {
      for (long n = k < K / 8 * 8 ? N / 8 * 8 : 0; n < N; ++n) to[k * row + n] = b[k + n * bn];
    }
  } else {
    for (long k = 0; k < K; ++k) {
      for (long n = 0; n < N; ++n) to[k * row + n] = b[k * bk + n * bn];
    }
  }
}

// c = to + a b, where to may be null. The names of strides: their matrix, and the index that they are of.
template <long M, long N, long K, long am, long ak, long bk, long bn, long cm, long im>
void product(float* c, const float* a, const float* b, const float* to) {
  constexpr bool is_packed = bn != 1 || N % lanes != 0;
  constexpr long row = is_packed ? (N + lanes - 1) / lanes * lanes : bk;
  alignas(64) static float memory[is_packed ? K * row : 1];
  if constexpr (is_packed) {
    pack<K, N, bk, bn, row>(b, memory);
    b = memory;
  }
  long n = 0;
  for (; n + 2 * lanes <= N; n += 2 * lanes) {
    columns<2, lanes, M, K, am, ak, row, cm, im>(c + n, a, b + n, to ? to + n : to);
  }
  if constexpr (N % (2 * lanes) > lanes) {
    columns<2, N % lanes, M, K, am, ak, row, cm, im>(c + n, a, b + n, to ? to + n : to);
  } else if constexpr (N % (2 * lanes) > 0) {
    constexpr int last = N % lanes == 0 ? lanes : N % lanes;
    columns<1, last, M, K, am, ak, row, cm, im>(c + n, a, b + n, to ? to + n : to);
  }
}

// LibTorch's MKL exports it.
extern "C" void sgemm_(const char* turn_a, const char* turn_b, const int* m, const int* n, const int* k,
                       const float* alpha, const float* a, const int* row_a, const float* b, const int* row_b,
                       const float* beta, float* c, const int* row_c);

// The same as product. BLAS has columns next to each other, so it computes that c turned is b turned times a turned.
template <long M, long N, long K, long am, long ak, long bk, long bn, long cm, long im>
void large_product(float* c, const float* a, const float* b, const float* to) {
  constexpr auto larger = [](long x, long y) { return static_cast<int>(x < y ? y : x); };
  constexpr bool a_has_rows = ak == 1 || K == 1, b_has_rows = bn == 1 || N == 1;
  const int m = M, n = N, k = K, row_c = cm;
  const int row_a = a_has_rows ? larger(am, K) : larger(ak, M), row_b = b_has_rows ? larger(bk, N) : larger(bn, K);
  const float one = 1, beta = to ? 1 : 0;
  if (to && to != c) {
    for (long i = 0; i < M; ++i) {
      LOOP (long j = 0; j < N; ++j) c[i * cm + j] = to[i * im + j];
    }
  }
  sgemm_(b_has_rows ? "N" : "T", a_has_rows ? "N" : "T", &n, &m, &k, &one, b, &row_b, a, &row_a, &beta, c, &row_c);
}

// Cephes' ranges and polynomials of another order: within two units of the last place, and 0 below normal numbers.
inline float exp_of(float x) {
  const float n = __builtin_rintf(x * 1.44269504f);
  const float r = (x - n * 0.693145752f) - n * 1.42860682e-6f;
  float p = 1.98412698e-4f;
  p = p * r + 1.38888889e-3f;
  p = p * r + 8.33333333e-3f;
  p = p * r + 4.16666667e-2f;
  p = p * r + 1.66666667e-1f;
  p = p * r + 0.5f;
  p = p * r * r + r + 1.0f;
  const float bounded = n < -126.0f ? -126.0f : n > 127.0f ? 127.0f : n;
  const int bits = (static_cast<int>(bounded) + 127) << 23;
  float power;
  __builtin_memcpy(&power, &bits, 4);
  const float y = p * power;
  return x < -87.33654f ? 0.0f : x > 88.7228317f ? __builtin_inff() : n > 127.0f ? y + y : y;
}
inline double exp_of(double x) { return __builtin_exp(x); }
inline float tanh_of(float x) {
  const float size = x < 0 ? -x : x, square = x * x;
  const float large = 1.0f - 2.0f / (exp_of(2.0f * size) + 1.0f);
  float small = -5.70498872e-3f;
  small = small * square + 2.06390887e-2f;
  small = small * square - 5.37397155e-2f;
  small = small * square + 1.33314422e-1f;
  small = small * square - 3.33332819e-1f;
  small = small * square * x + x;
  return size < 0.625f ? small : x < 0 ? -large : large;
}
inline double tanh_of(double x) { return __builtin_tanh(x); }
inline float sigmoid_of(float x) { return 1.0f / (1.0f + exp_of(-x)); }
inline double sigmoid_of(double x) { return 1.0 / (1.0 + exp_of(-x)); }
inline float root_of(float x) { return __builtin_sqrtf(x); }
inline double root_of(double x) { return __builtin_sqrt(x); }

template <class T>
T silu_slope(T x) {
  const T s = sigmoid_of(x);
  return s * (1 + x * (1 - s));
}
template <class T>
T gelu_of(T x) {
  constexpr T factor = 0.7978845608028654;  // the root of 2 / pi
  return static_cast<T>(0.5) * x * (1 + tanh_of(factor * (x + static_cast<T>(0.044715) * x * x * x)));
}
template <class T>
T gelu_slope(T x) {
  constexpr T factor = 0.7978845608028654;
  const T t = tanh_of(factor * (x + static_cast<T>(0.044715) * x * x * x));
  const T inner = factor * (1 + static_cast<T>(3 * 0.044715) * x * x);
  return static_cast<T>(0.5) * (1 + t + x * (1 - t * t) * inner);
}

// False: a class does not exist.
template <long rows, long classes>
bool cross_entropy(const float* x, const long* targets, long ignored, bool is_mean, float* y, float* loss) {
  alignas(64) static float parts[rows * classes];
  long counted = 0;
  for (long r = 0; r < rows; ++r) {
    const long target = targets[r];
    if (target != ignored && static_cast<unsigned long>(target) >= classes) return false;
    counted += target != ignored;
    float most = x[r * classes];
    SUM(omp simd reduction(max : most)) (long c = 0; c < classes; ++c) {
      most = x[r * classes + c] > most ? x[r * classes + c] : most;
    }
    LOOP (long c = 0; c < classes; ++c) y[r * classes + c] = x[r * classes + c] - most;
  }
  LOOP (long i = 0; i < rows * classes; ++i) parts[i] = exp_of(y[i]);
  double sum = 0;
  for (long r = 0; r < rows; ++r) {
    float all = 0;
    SUM(omp simd reduction(+ : all)) (long c = 0; c < classes; ++c) all += parts[r * classes + c];
    const float log = __builtin_logf(all);
    LOOP (long c = 0; c < classes; ++c) y[r * classes + c] -= log;
    if (targets[r] != ignored) sum -= y[r * classes + targets[r]];
  }
  *loss = static_cast<float>(is_mean ? sum / static_cast<double>(counted) : sum);
  return true;
}

template <long rows, long classes>
bool cross_entropy_backward(const float* slope, const float* y, const long* targets, long ignored, bool is_mean,
                            float* dx) {
  long counted = 0;
  for (long r = 0; r < rows; ++r) {
    if (targets[r] != ignored && static_cast<unsigned long>(targets[r]) >= classes) return false;
    counted += targets[r] != ignored;
  }
  const float factor = static_cast<float>(*slope * (is_mean ? 1 / static_cast<double>(counted) : 1.0));
  LOOP (long i = 0; i < rows * classes; ++i) dx[i] = exp_of(y[i]) * factor;
  for (long r = 0; r < rows; ++r) {
    if (targets[r] != ignored) {
      dx[r * classes + targets[r]] -= factor;
    } else {
      LOOP (long c = 0; c < classes; ++c) dx[r * classes + c] = 0;
    }
  }
  return true;
}

// weight and bias may be null.
template <long rows, long n>
void layer_norm(const float* x, const float* weight, const float* bias, float eps, float* y, float* means,
                float* inverses) {
  for (long r = 0; r < rows; ++r) {
    const float* from = x + r * n;
    float sum = 0, squares = 0;
    SUM(omp simd reduction(+ : sum)) (long i = 0; i < n; ++i) sum += from[i];
    const float mean = sum / n;
    SUM(omp simd reduction(+ : squares)) (long i = 0; i < n; ++i) squares += (from[i] - mean) * (from[i] - mean);
    const float inverse = 1 / __builtin_sqrtf(squares / n + eps);
    LOOP (long i = 0; i < n; ++i) {
      y[r * n + i] = (from[i] - mean) * inverse * (weight ? weight[i] : 1.0f) + (bias ? bias[i] : 0.0f);
    }
    means[r] = mean;
    inverses[r] = inverse;
  }
}

// Each of dx, dw and db may be null.
template <long rows, long n>
void layer_norm_backward(const float* dy, const float* x, const float* means, const float* inverses,
                         const float* weight, float* dx, float* dw, float* db) {
  LOOP (long i = 0; i < n; ++i) {
    if (dw) dw[i] = 0;
    if (db) db[i] = 0;
  }
  for (long r = 0; r < rows; ++r) {
    const float *above = dy + r * n, *from = x + r * n;
    const float mean = means[r], inverse = inverses[r];
    float sum = 0, with = 0;
    SUM(omp simd reduction(+ : sum, with)) (long i = 0; i < n; ++i) {
      const float scaled = weight ? above[i] * weight[i] : above[i];
      sum += scaled;
      with += scaled * (from[i] - mean);
    }
    with *= inverse * inverse / n;
    sum /= n;
    if (dx) {
      LOOP (long i = 0; i < n; ++i) {
        dx[r * n + i] = inverse * ((weight ? above[i] * weight[i] : above[i]) - sum - (from[i] - mean) * with);
      }
    }
    if (dw) LOOP (long i = 0; i < n; ++i) dw[i] += above[i] * (from[i] - mean) * inverse;
    if (db) LOOP (long i = 0; i < n; ++i) db[i] += above[i];
  }
}

// Copies the rows that numbers name. False: a row does not exist.
template <long rows, long n, long all>
bool choose(const float* from, const long* numbers, float* to) {
  for (long r = 0; r < rows; ++r) {
    if (static_cast<unsigned long>(numbers[r]) >= all) return false;
    __builtin_memcpy(to + r * n, from + numbers[r] * n, 4 * n);
  }
  return true;
}

// Adds rows, at a distance of `step`, to those that numbers name, of zeros.
template <long rows, long n, long all, long step>
bool add_chosen(const float* dy, const long* numbers, long padding, float* to) {
  __builtin_memset(to, 0, 4 * n * all);
  for (long r = 0; r < rows; ++r) {
    if (static_cast<unsigned long>(numbers[r]) >= all) return false;
    if (numbers[r] == padding) continue;
    LOOP (long i = 0; i < n; ++i) to[numbers[r] * n + i] += dy[r * step + i];
  }
  return true;
}

)prelude";

}  // namespace vernier::compile
