// The library of kernels for NVIDIA GPUs, libvernier_cuda.so. It links nothing of LibTorch. It is opened at run time,
// where a run trains on a GPU, and exports the table below as the symbol vernier_cuda. All pointers are of the current
// device's memory, unless said otherwise. Calls return at once; their work is in the stream.
#pragma once

#include <cstdint>

namespace vernier::gpu {

using Stream = void*;         // a cudaStream_t
using Trouble = const char*;  // why a call failed; nullptr: it did not

// Scalars that the optimizers of one call share. On the device: found_inf (float32; the update is skipped unless it is
// 0) and grad_scale (float32; gradients are divided by it). Either may be nullptr.
struct Gate {
  const float *found_inf, *grad_scale;
};

enum class Kind : std::int32_t { float32, bfloat16, half };

// A parameter with its gradient and state, all dense and in one memory layout. All are float32 unless said otherwise.
struct Tensor {
  std::int64_t count;
  float* parameter;
  const float* gradient;
  void* state[2];                          // in the order of the rule; float32, or for Adam bfloat16 or 8-bit codes
  float* largest[2];                       // the largest magnitude in each block of 256 codes
  const float* steps;                      // counts this update; for Adam, and SGD with dampening
  std::uint32_t noise_place, noise_count;  // random numbers for stochastic rounding in bfloat16
};

enum class Averages : std::int32_t { full, bfloat16, eight_bit };

struct AdamOptions {
  double lr, beta1, beta2, eps, l2, weight_decay;  // l2: Adam's; weight_decay: AdamW's
  bool maximize;
};
struct LionOptions {
  double lr, beta1, beta2, weight_decay;
};
struct SGDOptions {
  double lr, momentum, dampening, weight_decay;
  bool nesterov, maximize;
};

// A gradient whose numbers are read.
struct Numbers {
  const float* first;
  std::int64_t count;
};
// The memory that inspect() writes. norms: one for each tensor. The others are one number.
struct Inspection {
  double *norms, *norm;
  float* found_inf;
  double* scratch;  // inspection_scratch() numbers
};

constexpr std::int64_t adam_scratch = 12;

// A contiguous matrix that becomes fp8: number * scale, rounded. Without a scale it is that of float8_scale() for
// *amax. The four outputs may be nullptr.
struct Float8Cast {
  const void* from;
  Kind kind;
  std::int64_t rows, columns;
  const float *scale, *amax;
  float highest;             // for amax: the format's largest number, less the margin
  bool power_of_two;         // the scale made of amax
  bool is_e5m2;              // else E4M3
  std::uint8_t* values;      // rows x columns
  std::uint8_t* transposed;  // columns x rows
  float* largest;            // the largest magnitude before the scale; begins as 0
  float* scales;             // the scale's inverse, which cuBLAS reads and wants aligned to 16 bytes, and the scale
};

// Logits [rows, columns] of the classes from `first` on; their rows are `stride` numbers apart. For each row: target is
// the number of its class among all; largest, the sum of e^(logit - largest), the target's logit, and the sum of the
// logits, each of the classes until now. They begin as -inf, 0, anything, 0. total may be nullptr.
struct SoftmaxSums {
  const void* logits;
  Kind kind;
  std::int64_t rows, columns, stride, first;
  const std::int64_t* target;
  float* largest;
  double *sums, *chosen, *total;
};
// all * softmax - spread for each logit, hit less at the target; 0 in rows whose `all` is 0, and beyond the columns.
// These factors are numbers of a row. log_sums: logarithms of the sums above.
struct SoftmaxSlopes {
  const void* logits;
  void* to;  // slopes of the same kind; may be the logits
  Kind kind;
  std::int64_t rows, columns, stride, first;
  const std::int64_t* target;
  const float *largest, *log_sums;
  const double *all, *hit, *spread;
};

// LayerNorm or RMSNorm of rows [rows, columns], contiguous: of x, or of its sum with a branch. Kind `to` is that of the
// branch and y; it is `kind`, or any if that is float32.
struct NormRows {
  const void *x, *branch;  // branch may be nullptr
  void *sum, *y;           // sum: in the kind of x, with a branch alone
  Kind kind, to;
  std::int64_t rows, columns;
  const float *weight, *bias;  // one number for each column; nullptr: 1 and 0
  float eps;
  float *mean, *inverse;  // one number for each row; mean is nullptr for RMSNorm; inverse: 1 / standard deviation
};
struct NormSlopes {
  const void *slopes, *x;          // slopes: of y; x: what was normed
  const void* sum_slopes;          // in the kind of x, are added to those of x; nullptr: 0
  void *x_slopes, *branch_slopes;  // branch_slopes: x_slopes in the kind of y; may be nullptr
  Kind kind, to;
  std::int64_t rows, columns;  // at most most_norm_columns
  const float *weight, *mean, *inverse;
  float *weight_slopes, *bias_slopes;  // bias_slopes may be nullptr
  float* scratch;                      // 2 * norm_parts * columns numbers
};
constexpr std::int64_t most_norm_columns = 4096, norm_parts = 792;

// A product of row-major matrices in bfloat16 or float16, summed up in float32: to [rows, columns] = a [rows, inner] x
// b [inner, columns]. A row in memory has a multiple of 8 numbers, and addresses are multiples of 16.
// What follows `b` may be nullptr, but for `to`.
struct Product {
  Kind kind;
  std::int64_t rows, columns, inner;
  bool is_a_turned, is_b_turned;  // stored as [inner, rows] and [columns, inner]
  const void *a, *b;
  const void* bias;            // [columns]: is added
  void* inputs_of_gelu;        // [rows, columns]: receives the sum with the bias; `to` receives its GELU (tanh)
  const void* slopes_of_gelu;  // [rows, columns], inputs of GELU: the product is multiplied by the derivative there
  void* sums;  // [columns]: with slopes_of_gelu the sums of `to` over its rows, else those of b over `inner`
  void* to;
  void* scratch;
  std::int64_t scratch_bytes;
};

// A master whose numbers become a bfloat16 weight, both in one memory layout.
struct RoundedWeight {
  std::int64_t count;
  const float* master;
  std::uint16_t *weight, *compensation;  // compensation: Kahan's
  std::uint64_t first_sequence;          // first sequence of random numbers; each is for 4096 elements
};
struct Rounding {
  bool is_stochastic = false;        // else with Kahan compensation
  std::uint64_t seed = 0, draw = 0;  // stochastic: the random numbers
  const float* skip = nullptr;       // Kahan: on the device, float32; nothing changes unless it is 0; nullptr: 0
};

struct Library {
  std::uint64_t layout;  // VERNIER_CUDA_LAYOUT, a hash of these headers
  // Says why the current device cannot run these kernels; nullptr: it can.
  Trouble (*trouble)();

  // Updates of all tensors in one pass. scratch: adam_scratch bytes for each tensor.
  Trouble (*adam)(const AdamOptions& options, Averages averages, const Tensor* tensors, std::int64_t count, Gate gate,
                  void* scratch, Stream stream);
  Trouble (*lion)(const LionOptions& options, const Tensor* tensors, std::int64_t count, Gate gate, Stream stream);
  Trouble (*sgd)(const SGDOptions& options, const Tensor* tensors, std::int64_t count, Gate gate, Stream stream);

  // 2-norms in float64 and the finite check, in one pass over all gradients.
  std::int64_t (*inspection_scratch)(const Numbers* tensors, std::int64_t count);
  Trouble (*inspect)(const Numbers* tensors, std::int64_t count, const Inspection& to, Stream stream);

  // fp8: a cast, and the transposed copy of a contiguous matrix of bytes.
  Trouble (*cast_to_float8)(const Float8Cast& cast, Stream stream);
  Trouble (*transpose_bytes)(const std::uint8_t* from, std::int64_t rows, std::int64_t columns, std::uint8_t* to,
                             Stream stream);

  // Cross entropy of rows of logits.
  Trouble (*softmax_sums)(const SoftmaxSums& rows, Stream stream);
  Trouble (*softmax_slopes)(const SoftmaxSlopes& rows, Stream stream);

  Trouble (*norm)(const NormRows& rows, Stream stream);
  Trouble (*norm_slopes)(const NormSlopes& rows, Stream stream);

  // Multiplies by cuBLASLt in one launch. If that cannot do all of it, nothing is computed, and the result says why.
  Trouble (*multiply)(const Product& product, Stream stream);

  Trouble (*round_weights)(const Rounding& how, const RoundedWeight* weights, std::int64_t count, Stream stream);
};

}  // namespace vernier::gpu
