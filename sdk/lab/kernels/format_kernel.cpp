// Compiled with vectorisation, and without the compiler's own choice of fused multiplications (CMakeLists.txt).
#include "format_kernel.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <type_traits>

#include "base/targets.h"
#include "lab_kernels.h"

namespace vernier {

namespace {

template <class Real>
struct Bits;
template <>
struct Bits<float> {
  using Word = std::int32_t;
  static constexpr Word magnitude = 0x7fffffff, power = 0x7f800000, two = 254 << 23;
};
template <>
struct Bits<double> {
  using Word = std::int64_t;
  static constexpr Word magnitude = 0x7fffffffffffffff, power = 0x7ff0000000000000, two = Word{2046} << 52;
};

// The numbers of a rule in the precision of the computation.
template <class Real>
struct Rule {
  explicit Rule(const FormatRule& r)
      : least_power(static_cast<Real>(r.least_power)),
        step_of_power(static_cast<Real>(r.step_of_power)),
        flushed_below(static_cast<Real>(r.flushed_below)),
        largest(static_cast<Real>(r.largest)),
        lowest(static_cast<Real>(r.lowest)),
        beyond(static_cast<Real>(r.beyond)),
        beyond_below(static_cast<Real>(r.beyond_below)),
        zero_sign(r.has_negative_zero ? ~Word{0} : 0) {}
  using Word = typename Bits<Real>::Word;
  Real least_power, step_of_power, flushed_below, largest, lowest, beyond, beyond_below;
  Word zero_sign;  // all bits if there is a negative zero
};

// The plain form for one number; the compiler makes vectors of it. Powers of two are exact in every operation here; t
// keeps all bits of x, and so does its rest.
template <Rounding rounding, class Real>
VERNIER_INLINE Real rounded(const Rule<Real>& rule, Real x, std::uint32_t random, int bits) {
  using Word = typename Bits<Real>::Word;
  using B = Bits<Real>;
  const Word word = std::bit_cast<Word>(x), sign = word & ~B::magnitude;
  const Real magnitude = std::bit_cast<Real>(static_cast<Word>(word & B::magnitude));
  const Real power = std::bit_cast<Real>(static_cast<Word>(word & B::power));
  const Real widest = power > rule.least_power ? power : rule.least_power;
  const Real step = magnitude < rule.flushed_below ? rule.least_power : widest * rule.step_of_power;
  const Real t = magnitude * std::bit_cast<Real>(static_cast<Word>(B::two - std::bit_cast<Word>(step)));
  Real whole = 0;
  if constexpr (rounding == Rounding::nearest_even) {
    whole = std::is_same_v<Real, float> ? static_cast<Real>(__builtin_rintf(static_cast<float>(t))) : __builtin_rint(t);
  } else {
    const Real lower =
        std::is_same_v<Real, float> ? static_cast<Real>(__builtin_floorf(static_cast<float>(t))) : __builtin_floor(t);
    const Real rest = t - lower;
    if constexpr (rounding == Rounding::toward_zero) {
      whole = lower;
    } else if constexpr (rounding == Rounding::nearest_away) {
      whole = rest >= Real(0.5) ? lower + 1 : lower;
    } else {
      // P3109's second rule: with n bits, up if floor(rest * 2^(n + 1)) + 2 * random + 1 reaches 2^(n + 1).
      const auto units = static_cast<std::int32_t>(rest * static_cast<Real>(2 << bits));
      const auto drawn = static_cast<std::int32_t>((random >> (32 - bits)) * 2 + 1);
      whole = units + drawn >= 2 << bits ? lower + 1 : lower;
    }
  }
  const bool is_negative = sign != 0;
  const Real most = is_negative ? rule.lowest : rule.largest, beyond = is_negative ? rule.beyond_below : rule.beyond;
  Real value = whole * step;
  const Real instead = rounding == Rounding::toward_zero ? most : beyond;
  value = value > most ? instead : value;
  value = magnitude > std::numeric_limits<Real>::max() ? beyond : value;
  const Word kept = value == 0 ? rule.zero_sign : ~Word{0};
  value = std::bit_cast<Real>(static_cast<Word>(std::bit_cast<Word>(value) | (sign & kept)));
  return x != x ? x : value;
}

struct Job {
  const float* x;
  const float* scale;
  float* y;
  std::int64_t count;
  std::uint32_t place;
};

template <class Real, Rounding rounding, bool is_scaled>
VERNIER_INLINE void round_all(const FormatRule& given, const FormatDraws& draws, const Job& job) {
  const Rule<Real> rule(given);
  const auto bits = draws.bits;
  for (std::int64_t i = 0; i < job.count; ++i) {
    float x = job.x[i];
    if constexpr (is_scaled) x = x / job.scale[i];
    std::uint32_t random = 0;
    if constexpr (rounding == Rounding::stochastic) {
      random = draws.noise(job.place + static_cast<std::uint32_t>(i));
    }
    auto y = static_cast<float>(rounded<rounding>(rule, static_cast<Real>(x), random, bits));
    if constexpr (is_scaled) y = y * job.scale[i];
    job.y[i] = y;
  }
}

template <class Real, Rounding rounding>
VERNIER_INLINE void round_with(const FormatRule& rule, const FormatDraws& draws, const Job& job) {
  if (job.scale != nullptr) return round_all<Real, rounding, true>(rule, draws, job);
  round_all<Real, rounding, false>(rule, draws, job);
}

template <class Real>
VERNIER_INLINE void round_as(const FormatRule& rule, Rounding rounding, const FormatDraws& draws, const Job& job) {
  switch (rounding) {
    case Rounding::nearest_even:
      return round_with<Real, Rounding::nearest_even>(rule, draws, job);
    case Rounding::nearest_away:
      return round_with<Real, Rounding::nearest_away>(rule, draws, job);
    case Rounding::toward_zero:
      return round_with<Real, Rounding::toward_zero>(rule, draws, job);
    case Rounding::stochastic:
      return round_with<Real, Rounding::stochastic>(rule, draws, job);
  }
}

VERNIER_INLINE void round_narrow_or_wide(const FormatRule& rule, Rounding rounding, const FormatDraws& draws,
                                         const Job& job) {
  if (rule.is_narrow) return round_as<float>(rule, rounding, draws, job);
  round_as<double>(rule, rounding, draws, job);
}

// The bits of magnitudes are ordered as they are, and those of NaN come last.
VERNIER_INLINE void raise(const float* __restrict x, float* __restrict most, std::int64_t count) {
  for (std::int64_t i = 0; i < count; ++i) {
    const auto a = std::bit_cast<std::int32_t>(x[i]) & 0x7fffffff, b = std::bit_cast<std::int32_t>(most[i]);
    most[i] = std::bit_cast<float>(a > b ? a : b);
  }
}

VERNIER_AVX512 void round_512(const FormatRule& rule, Rounding rounding, const FormatDraws& draws, const float* x,
                              const float* scale, float* y, std::int64_t count, std::uint32_t place) {
  round_narrow_or_wide(rule, rounding, draws, {x, scale, y, count, place});
}
VERNIER_AVX2 void round_256(const FormatRule& rule, Rounding rounding, const FormatDraws& draws, const float* x,
                            const float* scale, float* y, std::int64_t count, std::uint32_t place) {
  round_narrow_or_wide(rule, rounding, draws, {x, scale, y, count, place});
}
void round_128(const FormatRule& rule, Rounding rounding, const FormatDraws& draws, const float* x, const float* scale,
               float* y, std::int64_t count, std::uint32_t place) {
  round_narrow_or_wide(rule, rounding, draws, {x, scale, y, count, place});
}
VERNIER_AVX2 void raise_256(const float* x, float* most, std::int64_t count) {
  raise(x, most, count);
}
void raise_128(const float* x, float* most, std::int64_t count) {
  raise(x, most, count);
}

constexpr FormatKernels kernels_512 = {round_512, raise_256}, kernels_256 = {round_256, raise_256},
                        kernels_128 = {round_128, raise_128};

}  // namespace

FormatRule::FormatRule(const NumberFormat& f) {
  const bool is_fixed = f.kind == NumberFormat::Kind::fixed;
  const double infinity = std::numeric_limits<double>::infinity();
  largest = f.largest();
  lowest = is_fixed && !f.is_symmetric ? std::ldexp(1.0, f.bits - 1 - f.mantissa) : largest;
  // All steps of a fixed-point format are one: the power that counts is above all its numbers.
  // No float32 is below 2^-149, so a lower power makes no difference, and float64 has its inverse.
  const int least = is_fixed ? f.bits - 1 - f.mantissa : std::max(1 - f.bias, -300);
  const int digits = is_fixed ? f.bits - 1 : f.mantissa;
  least_power = std::ldexp(1.0, least);
  step_of_power = std::ldexp(1.0, -digits);
  if (!is_fixed && !f.subnormals) flushed_below = least_power;
  const bool has_nan = f.nan != NumberFormat::Nan::none;
  const auto past = [&](double most) {
    return f.saturate ? most : f.infinities ? infinity : has_nan ? std::numeric_limits<double>::quiet_NaN() : most;
  };
  beyond = past(largest);
  beyond_below = past(lowest);
  has_negative_zero = f.has_negative_zero();
  is_narrow = least - digits >= -120 && least <= 100 && digits >= 1 && digits <= 20 && largest <= 0x1p120;
}

VERNIER_DEFINE_KERNELS(Instructions::avx512, kernels_512, FormatKernels)
VERNIER_DEFINE_KERNELS(Instructions::avx2, kernels_256, FormatKernels)
VERNIER_DEFINE_KERNELS(Instructions::plain, kernels_128, FormatKernels)

}  // namespace vernier
