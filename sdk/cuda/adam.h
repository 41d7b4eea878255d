// Adam and AdamW, with averages in float32, bfloat16 or 8 bits. The bits are those of the kernels for the CPU
// (sdk/core/optim/kernels/adam_kernel.h) on a processor with fused multiplication.
#pragma once

#include "../core/gpu/library.h"
#include "codes.h"
#include "elements.h"

namespace vernier::gpu {

// The factors of one tensor in this step. They depend on its step count, which only the device knows.
struct AdamStep {
  float step_size;   // learning rate / bias correction of exp_avg
  float correction;  // square root of the bias correction of exp_avg_sq
  std::uint32_t noise;
};

// base^exponent, exact but for the last rounding: in two numbers of float64 (Dekker, Numer. Math. 18, 1971). pow() of
// a GPU and of the host differ in last bits.
VERNIER_BOTH double power(double base, std::uint64_t exponent) {
  double high = 1, low = 0, square = base, rest = 0;
  const auto multiply = [](double& a, double& a_rest, double b, double b_rest) {
    const double product = a * b;
    const double error = fma(a, b, -product) + (a * b_rest + a_rest * b);
    a = product + error;
    a_rest = error - (a - product);
  };
  for (; exponent != 0; exponent /= 2) {
    if (exponent % 2 != 0) multiply(high, low, square, rest);
    const double again = square, again_rest = rest;
    multiply(square, rest, again, again_rest);
  }
  return high;
}

template <unsigned most>
struct AdamPreparation {
  static constexpr unsigned threads = 64;
  struct Shared {};
  double lr, beta1, beta2;
  std::int32_t count;
  AdamStep* to;
  const float* steps[most];
  std::uint32_t noise[most];

  template <class Block>
  VERNIER_BOTH void operator()(const Block& block, Shared&) const {
    block.each([&](unsigned thread) {
      const auto i = static_cast<std::int32_t>(block.index * threads + thread);
      if (i >= count) return;
      const float step = *steps[i];
      const auto whole = static_cast<std::uint64_t>(step);
      to[i].step_size = static_cast<float>(lr / (1 - power(beta1, whole)));
      to[i].correction = static_cast<float>(sqrt(1 - power(beta2, whole)));
      to[i].noise = noise[i] + static_cast<std::uint32_t>(whole) * 0x9e3779b9U;
    });
  }
};

// The factors that all tensors of a call share.
struct AdamFactors {
  float sign, l2, decay, mean_share, beta2, square_share, eps;
  bool adds_l2;
};

// The update of one element: mean and square become the new averages. is_last: among the last count % 8 elements,
// which the kernels for the CPU round in another way.
VERNIER_BOTH float adam_element(const AdamFactors& n, const AdamStep& step, float weight, float g, bool is_last,
                                float& mean, float& square) {
  if (n.adds_l2) g = multiply_add(weight, n.l2, g);
  const bool starts_at_mean = n.mean_share < 0.5F;
  mean = multiply_add(starts_at_mean ? n.mean_share : n.mean_share - 1, g - mean, starts_at_mean ? mean : g);
  square = is_last ? multiply_add(square, n.beta2, n.square_share * g * g)
                   : multiply_add(g, n.square_share * g, square * n.beta2);
  const float root = sqrtf(square) / step.correction + n.eps;
  return weight * n.decay - step.step_size * mean / root;
}

// The finalizer of MurmurHash3, twice (sdk/core/optim/kernels/counter_rng.h).
VERNIER_BOTH std::uint32_t mixed(std::uint32_t x) {
  x = (x ^ x >> 16) * 0x85ebca6bU;
  x = (x ^ x >> 13) * 0xc2b2ae35U;
  return x ^ x >> 16;
}

VERNIER_BOTH float wide(std::uint16_t number) {
  return bits_as<float>(std::uint32_t{number} << 16);
}
VERNIER_BOTH std::uint16_t rounded(float number, std::uint32_t noise) {
  const std::uint32_t bits = is_nan(number) ? 0x7fc00000U : bits_as<std::uint32_t>(number);
  return static_cast<std::uint16_t>((bits + noise) >> 16);
}

// The memory of averages in float32 or bfloat16.
struct InFloat32 {
  float *means, *squares;
  VERNIER_BOTH InFloat32(const Tensor& tensor, const AdamStep&)
      : means(static_cast<float*>(tensor.state[0])), squares(static_cast<float*>(tensor.state[1])) {}
  VERNIER_BOTH float mean(std::int64_t i) const { return means[i]; }
  VERNIER_BOTH float square(std::int64_t i) const { return squares[i]; }
  VERNIER_BOTH void keep(std::int64_t i, float mean, float square) const {
    means[i] = mean;
    squares[i] = square;
  }
};
struct InBfloat16 {
  std::uint16_t *means, *squares;
  std::uint32_t place, now;
  VERNIER_BOTH InBfloat16(const Tensor& tensor, const AdamStep& step)
      : means(static_cast<std::uint16_t*>(tensor.state[0])),
        squares(static_cast<std::uint16_t*>(tensor.state[1])),
        place(tensor.noise_place),
        now(step.noise) {}
  VERNIER_BOTH float mean(std::int64_t i) const { return wide(means[i]); }
  VERNIER_BOTH float square(std::int64_t i) const { return wide(squares[i]); }
  VERNIER_BOTH void keep(std::int64_t i, float mean, float square) const {
    const std::uint32_t word = mixed(mixed(static_cast<std::uint32_t>(i) ^ place) + now);
    means[i] = rounded(mean, word & 0xffffU);
    squares[i] = rounded(square, word >> 16);
  }
};

template <class Memory>
struct AdamRule {
  struct Loaded {
    float weight, gradient, mean, square;
  };
  const AdamFactors& factors;
  AdamStep step;
  GradientScale scaled;
  Memory memory;
  float* parameter;
  const float* gradient;
  std::int64_t last;  // the first of the last elements

  VERNIER_BOTH Loaded load(std::int64_t i) const {
    return {parameter[i], gradient[i], memory.mean(i), memory.square(i)};
  }
  VERNIER_BOTH void update(std::int64_t i, Loaded it) const {
    parameter[i] = adam_element(factors, step, it.weight, scaled(it.gradient), i >= last, it.mean, it.square);
    memory.keep(i, it.mean, it.square);
  }
};

using AdamChunks = Chunks<Tensor, 48, 8192>;

template <class Memory>
struct Adam {
  static constexpr unsigned threads = 256;
  struct Shared {};
  AdamChunks chunks;
  AdamFactors factors;
  const AdamStep* steps;
  Gate gate;

  template <class Block>
  VERNIER_BOTH void operator()(const Block& block, Shared&) const {
    if (is_skipped(gate.found_inf)) return;
    const auto place = chunks.at(block.index);
    const Tensor& tensor = chunks.items[place.item];
    const AdamStep step = steps[place.item];
    const AdamRule<Memory> rule{factors,
                                step,
                                gradient_scale(gate.grad_scale, factors.sign),
                                Memory(tensor, step),
                                tensor.parameter,
                                tensor.gradient,
                                tensor.count - tensor.count % 8};
    block.each([&](unsigned thread) { update_elements<threads>(place, thread, rule); });
  }
};

// Averages in codes: a group of threads has a block of 256 codes in its registers.
struct AdamInCodes {
  static constexpr unsigned threads = 256;
  static constexpr std::int64_t codes = 256;
  struct Shared {
    CodeTable with_sign, without;
  };
  AdamChunks chunks;
  AdamFactors factors;
  const AdamStep* steps;
  const CodeTable* tables;  // tables for the mean and for the square
  Gate gate;

  template <class Block>
  VERNIER_BOTH void operator()(const Block& block, Shared& shared) const {
    if (is_skipped(gate.found_inf)) return;
    block.each([&](unsigned thread) {
      for (unsigned i = thread; i < 256; i += threads) {
        shared.with_sign.numbers[i] = tables[0].numbers[i];
        shared.with_sign.starts[i] = tables[0].starts[i];
        shared.without.numbers[i] = tables[1].numbers[i];
        shared.without.starts[i] = tables[1].starts[i];
      }
    });
    const auto place = chunks.at(block.index);
    const Tensor& tensor = chunks.items[place.item];
    const AdamStep step = steps[place.item];
    const auto scaled = gradient_scale(gate.grad_scale, factors.sign);
    block.each_group([&](unsigned group, unsigned member) {
      for (std::int64_t start = place.start + group * codes; start < place.end; start += Block::groups * codes) {
        update_codes<Block>(shared, tensor, step, scaled, start, least(codes, place.end - start), member);
      }
    });
  }

  template <class Block>
  VERNIER_BOTH void update_codes(const Shared& shared, const Tensor& tensor, const AdamStep& step,
                                 const GradientScale& scaled, std::int64_t start, std::int64_t size,
                                 unsigned member) const {
    constexpr int own = static_cast<int>(codes) / static_cast<int>(Block::members);  // elements of a thread
    auto* const means = static_cast<std::uint8_t*>(tensor.state[0]) + start;
    auto* const squares = static_cast<std::uint8_t*>(tensor.state[1]) + start;
    const std::int64_t last = tensor.count - tensor.count % 8, of_blocks = start / codes;
    const float most_mean = tensor.largest[0][of_blocks], most_square = tensor.largest[1][of_blocks];
    float mean[own], square[own];
    std::uint32_t largest_mean = 0, largest_square = 0;
    VERNIER_UNROLL for (int k = 0; k < own; ++k) {
      const std::int64_t j = member + std::int64_t{k} * Block::members, i = start + j;
      if (j >= size) continue;
      mean[k] = shared.with_sign.numbers[means[j]] * most_mean;
      square[k] = shared.without.numbers[squares[j]] * most_square;
      tensor.parameter[i] =
          adam_element(factors, step, tensor.parameter[i], scaled(tensor.gradient[i]), i >= last, mean[k], square[k]);
      // The bits of magnitudes are ordered as they are, and those of NaN come last.
      largest_mean = larger(largest_mean, mean[k]);
      largest_square = larger(largest_square, square[k]);
    }
    const float now_mean = bits_as<float>(Block::largest_of_group(largest_mean));
    const float now_square = bits_as<float>(Block::largest_of_group(largest_square));
    if (member == 0) {
      tensor.largest[0][of_blocks] = now_mean;
      tensor.largest[1][of_blocks] = now_square;
    }
    const float by_mean = now_mean == 0 ? 1.0F : now_mean, by_square = now_square == 0 ? 1.0F : now_square;
    VERNIER_UNROLL for (int k = 0; k < own; ++k) {
      const std::int64_t j = member + std::int64_t{k} * Block::members;
      if (j >= size) continue;
      means[j] = code_of(shared.with_sign, mean[k] / by_mean);
      squares[j] = code_of(shared.without, square[k] / by_square);
    }
  }
  static VERNIER_BOTH std::uint32_t larger(std::uint32_t largest, float number) {
    const std::uint32_t magnitude = bits_as<std::uint32_t>(number) & 0x7fffffffU;
    return magnitude > largest ? magnitude : largest;
  }
};

}  // namespace vernier::gpu
