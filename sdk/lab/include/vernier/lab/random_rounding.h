// Monte Carlo arithmetic (Parker, 1997): operators whose last bit is drawn. The spread of a result over several
// computations says how many of its digits are significant.
//
//   std::vector<double> samples;
//   for (std::uint64_t sample = 0; sample < 10; ++sample) {
//     const vernier::RandomRounding rounding(sample);
//     samples.push_back(criterion(model->forward(input), target).item<double>());
//   }
//   std::cout << vernier::significant_digits(samples) << " digits\n";
#pragma once

#include <vernier/layers.h>

#include <cstdint>
#include <string_view>
#include <vector>

namespace vernier {

// One call of an operator while a RandomRounding lives. Valid within RoundingListener::called.
struct RoundedCall {
  std::string_view name;                     // "addmm"
  const std::vector<torch::Tensor>& inputs;  // the tensors that it reads
  // All that it returned or wrote, without views of its inputs and undefined tensors.
  const std::vector<torch::Tensor>& outputs;
  bool is_rounded;  // false: it was left alone, because it copies, compares or draws
};

class VERNIER_API RoundingListener {
 public:
  virtual ~RoundingListener();
  // Called behind each operator below autograd, on the thread of the guard. What it computes is not rounded at random.
  virtual void called(const RoundedCall& call) = 0;
};

// While it lives, each operator on this thread that computes in float32, bfloat16 or float16 on the CPU has a result
// with a random last bit, in forward and in backward. The operator is computed in float64. To that result comes noise,
// uniform in (-1/2, 1/2) units in the last place of the result's own dtype, and the sum is rounded to this dtype. So
// exact results stay as they are: copies, casts to a wider dtype, masks, and sums that need no rounding. Integers,
// booleans, float64, views, random numbers and sparse tensors are left alone.
//
// An operator that has no kernel for float64 computes in its own dtype. A twelfth of its numbers goes one unit up, and
// another twelfth one unit down, which has the same variance.
//
// The noise depends on the seed, on the number of operators before, and on the place of an element, not on threads.
// This library's own kernels (fused_kernels.h) are switched off meanwhile in the whole process, because several of them
// are not operators. So guards are for one thread of a process at a time. They do not nest: only the newest one draws.
class VERNIER_API RandomRounding {
 public:
  // listener: must outlive the guard; may be null.
  explicit RandomRounding(std::uint64_t seed, RoundingListener* listener = nullptr);
  ~RandomRounding();
  RandomRounding(const RandomRounding&) = delete;
  RandomRounding& operator=(const RandomRounding&) = delete;

  std::int64_t rounded() const { return rounded_; }  // operators whose result was rounded at random

 private:
  friend struct RandomRoundingKernel;
  std::uint64_t seed_;
  RoundingListener* listener_;
  RandomRounding* before_;
  bool was_fused_;
  std::uint64_t drawn_ = 0;  // tensors
  std::int64_t rounded_ = 0;
};

// Returns a copy whose numbers have a random last bit, for results of functions that are not operators. float32,
// bfloat16 or float16 on the CPU. place: distinguishes tensors of one seed.
VERNIER_API torch::Tensor with_random_last_bit(const torch::Tensor& tensor, std::uint64_t seed, std::uint64_t place);

// The decimal digits of a floating-point dtype: 7.22 of float32, 3.31 of float16, 2.41 of bfloat16.
VERNIER_API double digits_of(torch::ScalarType dtype);

// Returns the significant decimal digits of a number from its samples: -log10(s / |m|) with mean m and standard
// deviation s (of n - 1 degrees of freedom), at least 0 and at most digits_of(dtype). Without spread it returns the
// latter, and 0 if a sample is not finite. Throws Error for fewer than 2 samples.
VERNIER_API double significant_digits(const std::vector<double>& samples,
                                      torch::ScalarType dtype = torch::ScalarType::Float);

// The same from a mean square and a variance, as of all numbers of a tensor.
VERNIER_API double significant_digits(double mean_square, double variance, torch::ScalarType dtype);

}  // namespace vernier
