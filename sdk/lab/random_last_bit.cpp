#include "random_last_bit.h"

#include <ATen/Dispatch.h>
#include <ATen/Parallel.h>

#include <bit>
#include <cmath>

namespace vernier {

namespace {

float next(float number, bool is_up) {
  return std::nextafter(number, is_up ? HUGE_VALF : -HUGE_VALF);
}

// Codes of one sign are in the order of magnitudes. Zero goes to the least number of either sign.
template <class Half>
Half next(Half number, bool is_up) {
  if ((number.x & 0x7FFF) == 0) return Half(static_cast<std::uint16_t>(is_up ? 1 : 0x8001), Half::from_bits());
  const bool is_negative = (number.x & 0x8000) != 0;
  return Half(static_cast<std::uint16_t>(number.x + (is_up != is_negative ? 1 : -1)), Half::from_bits());
}

bool is_finite(double number) {
  return std::isfinite(number);
}

// uniform: in [0, 1).
template <class Number>
Number rounded(Number number, double wide, double uniform) {
  const auto nearest = static_cast<Number>(static_cast<float>(wide));
  const auto value = static_cast<double>(nearest);
  if (value == wide || !is_finite(value) || !is_finite(static_cast<double>(number))) {
    return is_finite(value) && is_finite(static_cast<double>(number)) ? nearest : number;
  }
  const auto other = next(nearest, wide > value);
  const double gap = std::abs(static_cast<double>(other) - value);
  return uniform * gap < std::abs(wide - value) ? other : nearest;
}

template <class Number>
Number jittered(Number number, double uniform) {
  constexpr double share = 1.0 / 12;  // variance 1/6, the mean one of rounding at random
  const auto value = static_cast<double>(number);
  if (value == 0 || !is_finite(value) || (uniform >= share && uniform < 1 - share)) return number;
  const auto other = next(number, uniform < share);
  return is_finite(static_cast<double>(other)) ? other : number;
}

template <class Number>
void draw(Number* numbers, const double* wide, std::int64_t count, const CountedNoise& noise) {
  constexpr std::int64_t grain = 8192;
  at::parallel_for(0, count, grain, [&](std::int64_t begin, std::int64_t end) {
    for (auto i = begin; i < end; ++i) {
      const double uniform = std::ldexp(static_cast<double>(noise(static_cast<std::uint32_t>(i))), -32);
      numbers[i] = wide != nullptr ? rounded(numbers[i], wide[i], uniform) : jittered(numbers[i], uniform);
    }
  });
}

}  // namespace

void draw_last_bit(const at::Tensor& numbers, const at::Tensor& wide, CountedNoise noise) {
  noise.set_step(1);
  const auto target = numbers.contiguous();
  const auto source = wide.defined() ? wide.contiguous() : wide;
  const auto* from = source.defined() ? source.const_data_ptr<double>() : nullptr;
  AT_DISPATCH_FLOATING_TYPES_AND2(at::kBFloat16, at::kHalf, numbers.scalar_type(), "draw_last_bit", [&] {
    if constexpr (!std::is_same_v<scalar_t, double>) {
      draw(target.mutable_data_ptr<scalar_t>(), from, numbers.numel(), noise);
    }
  });
  if (!target.is_same(numbers)) numbers.copy_(target);
}

}  // namespace vernier
