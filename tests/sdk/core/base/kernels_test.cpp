// Each line of kernels.inc that this processor can run, beside the plain loop that it equals.
#include <ATen/core/Tensor.h>
#include <doctest/doctest.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <limits>
#include <random>
#include <vector>

#include "base/kernels.h"
#include "cpu/kernels/activation_kernel.h"
#include "cpu/kernels/attention_kernel.h"
#include "cpu/kernels/bernoulli_kernel.h"
#include "cpu/kernels/pool_kernel.h"
#include "cpu/kernels/row_kernel.h"
#include "optim/block_quantisation.h"
#include "optim/kernels/adam_kernel.h"
#include "optim/kernels/element_kernel.h"
#include "optim/kernels/square_kernel.h"

namespace kernels_test {

namespace {

using namespace vernier;
template <class T>
using List = std::vector<T>;

std::mt19937 numbers_now(3);

template <class T = float>
List<T> numbers(std::int64_t count, float spread = 1) {
  std::normal_distribution<float> normal(0, spread);
  List<T> all(static_cast<std::size_t>(count));
  for (auto& each : all) each = static_cast<T>(normal(numbers_now));
  return all;
}
template <class T>
bool same_bits(const List<T>& a, const List<T>& b) {
  return std::memcmp(a.data(), b.data(), a.size() * sizeof(T)) == 0;
}
template <class T>
double number(T x) {
  return static_cast<double>(static_cast<float>(x));
}
// Compares with `exact`, up to rounding to T and a few roundings to float32.
template <class T>
bool is_near(T computed, double exact) {
  const double digits = std::is_same_v<T, float> ? 0x1p-20 : std::is_same_v<T, c10::Half> ? 0x1p-10 : 0x1p-7;
  return std::abs(number(computed) - exact) <= digits * std::max(std::abs(exact), 0.25);
}

template <class E>
void check(const RowKernels<E>& kernels) {
  for (const std::int64_t columns : {1, 7, 8, 16, 33, 1030}) {
    CAPTURE(columns);
    const Rows rows{3, columns};
    const auto count = 3 * columns;
    const auto x = numbers<E>(count);
    const auto weight = numbers(columns), bias = numbers(columns);
    List<E> normal(x.size()), scaled(x.size()), shares(x.size()), logs(x.size());
    List<float> means(3), inverses(3), sums(weight.size()), back(x.size());
    kernels.layer_norm(rows, x.data(), weight.data(), bias.data(), 1e-5F, normal.data(), means.data(), inverses.data());
    kernels.rms_norm(rows, x.data(), weight.data(), 1e-5F, scaled.data(), inverses.data());
    kernels.softmax(rows, x.data(), shares.data());
    kernels.log_softmax(rows, x.data(), logs.data());
    kernels.to_floats(count, x.data(), back.data());
    kernels.sum_of_rows(rows, back.data(), sums.data());
    for (std::int64_t row = 0; row < 3; ++row) {
      const auto* const from = x.data() + row * columns;
      double sum = 0, squares = 0, variance = 0, powers = 0;
      for (std::int64_t i = 0; i < columns; ++i) {
        sum += number(from[i]), squares += number(from[i]) * number(from[i]), powers += std::exp(number(from[i]));
      }
      const auto size = static_cast<double>(columns), mean = sum / size;
      for (std::int64_t i = 0; i < columns; ++i) variance += (number(from[i]) - mean) * (number(from[i]) - mean) / size;
      bool is_equal = true;
      for (std::int64_t i = 0; i < columns; ++i) {
        const auto at = static_cast<std::size_t>(row * columns + i), column = static_cast<std::size_t>(i);
        const double w = number(weight[column]), centred = number(x[at]) - mean;
        is_equal = is_equal && is_near(normal[at], centred / std::sqrt(variance + 1e-5) * w + number(bias[column]));
        is_equal = is_equal && is_near(scaled[at], number(x[at]) / std::sqrt(squares / size + 1e-5) * w);
        is_equal = is_equal && is_near(shares[at], std::exp(number(x[at])) / powers);
        is_equal = is_equal && is_near(logs[at], number(x[at]) - std::log(powers));
        is_equal = is_equal && number(back[at]) == number(x[at]);
      }
      CHECK(is_equal);
    }
    for (std::int64_t i = 0; i < columns; ++i) {
      const auto at = [&](std::int64_t row) { return number(x[static_cast<std::size_t>(row * columns + i)]); };
      CHECK(is_near(sums[static_cast<std::size_t>(i)], at(0) + at(1) + at(2)));
    }
  }
}

template <class E>
void check(const ActivationKernels<E>& kernels) {
  for (const std::int64_t count : {1, 15, 16, 100}) {
    const auto x = numbers<E>(count, 3), dy = numbers<E>(count);
    List<E> y(x.size());
    const auto equals = [&](const auto& plain) {
      for (std::size_t i = 0; i < x.size(); ++i) CHECK(is_near(y[i], plain(number(x[i]), number(dy[i]))));
    };
    const auto u = [](double v) { return std::sqrt(2 / M_PI) * (v + 0.044715 * v * v * v); };
    const auto sigmoid = [](double v) { return 1 / (1 + std::exp(-v)); };
    kernels.gelu_tanh(x.data(), y.data(), count);
    equals([&](double v, double) { return 0.5 * v * (1 + std::tanh(u(v))); });
    kernels.silu(x.data(), y.data(), count);
    equals([&](double v, double) { return v * sigmoid(v); });
    kernels.gelu_tanh_backward(dy.data(), x.data(), y.data(), count);
    equals([&](double v, double above) {
      const double slope = std::sqrt(2 / M_PI) * (1 + 3 * 0.044715 * v * v), t = std::tanh(u(v));
      return above * (0.5 * (1 + t) + 0.5 * v * (1 - t * t) * slope);
    });
    kernels.silu_backward(dy.data(), x.data(), y.data(), count);
    equals([&](double v, double above) { return above * sigmoid(v) * (1 + v * (1 - sigmoid(v))); });
  }
}

template <class E, class P>
void check(const AttentionKernels<E, P>& kernels) {
  constexpr std::size_t block = 64, width = 34, rows = 61, columns = 33, stride = 40;
  const auto from = numbers<E>(block * stride), other = numbers<E>(block * stride);
  List<P> taken(block * width), left(taken.size()), right(taken.size()), laid(taken.size());
  kernels.take_rows(from.data(), stride, rows, columns, width, taken.data());
  kernels.transpose_left(taken.data(), width, left.data());
  kernels.transpose_right(taken.data(), width, right.data());
  const P* const in_turn = kernels.right(taken.data(), width, laid.data());
  List<float> dots(block);
  kernels.row_dots(from.data(), stride, other.data(), stride, rows, columns, dots.data());
  constexpr bool is_plain = std::is_same_v<P, float>;
  for (std::size_t row = 0; row < block; ++row) {
    double dot = 0;
    for (std::size_t column = 0; column < width; ++column) {
      const bool is_there = row < rows && column < columns;
      const auto x = taken[row * width + column];
      CHECK(number(x) == (is_there ? number(from[row * stride + column]) : 0));
      CHECK(number(left[column * block + row]) == number(x));
      CHECK(number(right[is_plain ? column * block + row : column / 2 * 2 * block + 2 * row + column % 2]) ==
            number(x));
      CHECK(number(in_turn[is_plain ? row * width + column : row / 2 * 2 * width + 2 * column + row % 2]) == number(x));
      if (is_there) dot += number(x) * number(other[row * stride + column]);
    }
    CHECK(std::abs(number(dots[row]) - dot) < 1e-4);
  }

  const ScoreRule rule{0.5F, block, block, 0, nullptr};  // a query sees the keys up to its own
  const auto scores = numbers(block * block);
  List<float> largest(block, -std::numeric_limits<float>::infinity()), sums(block), output;
  List<P> weights(block * block);
  kernels.soften(rule, scores.data(), largest.data(), sums.data(), 0, output.data(), weights.data());
  for (std::size_t query = 0; query < block; ++query) {
    double most = -INFINITY, sum = 0;
    for (std::size_t key = 0; key <= query; ++key) most = std::max(most, 0.5 * number(scores[key * block + query]));
    for (std::size_t key = 0; key < block; ++key) {
      const double weight = key <= query ? std::exp(0.5 * number(scores[key * block + query]) - most) : 0;
      sum += weight;
      CHECK(is_near(weights[is_plain ? key * block + query : key / 2 * 2 * block + 2 * query + key % 2], weight));
    }
    CHECK(is_near(sums[query], sum));
  }
}

template <class Bits>
void check(const RandomKernels<Bits>& kernels) {
  std::mt19937 engine(7);
  std::uint32_t state[Twister::words];
  for (std::uint32_t i = 0, word = 7; i < Twister::words; ++i) {
    state[i] = word;
    word = 1812433253U * (word ^ word >> 30) + i + 1;
  }
  Twister twister{state, 0, 1};
  for (const std::int64_t count : {1, 311, 312, 313, 1025, 5000}) {
    List<Bits> drawn(static_cast<std::size_t>(count)), expected;
    kernels.draw_bernoulli(twister, std::int64_t{1} << 52, Bits{1}, drawn.data(), count);
    for (std::int64_t i = 0; i < count; ++i) {
      const std::uint64_t upper = engine(), lower = engine();
      expected.push_back(((upper << 32 | lower) & ((std::uint64_t{1} << 53) - 1)) < std::uint64_t{1} << 52 ? 1 : 0);
    }
    CHECK(drawn == expected);
  }
}

void check(const PoolKernels& kernels) {
  for (const PoolSide side : {PoolSide{70, 3, 1, 1, 70}, PoolSide{70, 2, 2, 0, 35}, PoolSide{70, 3, 3, 1, 24}}) {
    const auto image = numbers(70 * 70);
    const auto most = static_cast<std::size_t>(side.most * side.most);
    List<float> out(most), expected(most, -std::numeric_limits<float>::infinity());
    List<std::int64_t> places(most), expected_places(most);
    kernels.max_pool(side, side, image.data(), out.data(), places.data());
    for (std::size_t window = 0; window < most; ++window) {
      const auto top = static_cast<std::int64_t>(window) / side.most * side.stride - side.padding;
      const auto left = static_cast<std::int64_t>(window) % side.most * side.stride - side.padding;
      for (auto y = std::max<std::int64_t>(top, 0); y < std::min(top + side.kernel, side.size); ++y) {
        for (auto x = std::max<std::int64_t>(left, 0); x < std::min(left + side.kernel, side.size); ++x) {
          const auto value = image[static_cast<std::size_t>(y * 70 + x)];
          if (value > expected[window]) expected[window] = value, expected_places[window] = y * 70 + x;
        }
      }
    }
    CHECK(out == expected);
    CHECK(places == expected_places);
    if (!is_pair(side)) continue;
    List<float> dx(image.size(), 7), expected_dx(image.size(), 0);
    for (std::size_t window = 0; window < most; ++window) {
      expected_dx[static_cast<std::size_t>(places[window])] += out[window];
    }
    CHECK(kernels.pairs_backward(side, side, out.data(), places.data(), dx.data()));
    CHECK(same_bits(dx, expected_dx));
    for (const auto distance : {std::int64_t{2}, std::int64_t{-140}, std::int64_t{1} << 32}) {
      auto elsewhere = places;
      elsewhere.back() += distance;
      CHECK_FALSE(kernels.pairs_backward(side, side, out.data(), elsewhere.data(), dx.data()));
    }
  }
}

void check(const CodeKernels& kernels) {
  const auto& plain = kernels_for<Instructions::plain, CodeKernels>();
  for (const bool is_signed : {true, false}) {
    const auto& kernel = BlockQuantisation::of(is_signed).kernel();
    for (const std::int64_t count : {1, 64, 255, 256, 1000}) {
      auto from = numbers(count);
      for (auto& x : from) x = (is_signed ? x : std::abs(x)) * std::exp(static_cast<float>(numbers_now() % 12) - 12);
      List<std::uint8_t> codes(from.size()), expected(from.size());
      List<float> largest(4), expected_largest(4), back(from.size()), expected_back(from.size());
      kernels.pack(kernel, from.data(), count, codes.data(), largest.data());
      plain.pack(kernel, from.data(), count, expected.data(), expected_largest.data());
      kernels.unpack(kernel, codes.data(), largest.data(), count, back.data());
      plain.unpack(kernel, codes.data(), largest.data(), count, expected_back.data());
      CHECK(codes == expected);
      CHECK(same_bits(largest, expected_largest));
      CHECK(same_bits(back, expected_back));
    }
  }
}

// Calls update(kernels, count, parameter, gradient, three states) with these kernels and with other ones.
template <class Kernels, class Update>
void compare(const Kernels& kernels, const Kernels& others, const Update& update) {
  for (const std::int64_t count : {1, 16, 300, 4096}) {
    const auto gradient = numbers(count);
    List<float> before = numbers(count), states[3] = {numbers(count, 0.1F), numbers(count), numbers(count)};
    for (auto& x : states[1]) x = std::abs(x);
    for (auto& x : states[0]) x = std::abs(x);
    auto other = before;
    auto other_states = std::to_array(states);
    update(kernels, count, before.data(), gradient.data(), states[0].data(), states[1].data(), states[2].data());
    update(others, count, other.data(), gradient.data(), other_states[0].data(), other_states[1].data(),
           other_states[2].data());
    CHECK(same_bits(before, other));
    for (std::size_t i = 0; i < 3; ++i) CHECK(same_bits(states[i], other_states[i]));
  }
}

void check(const ElementKernels& kernels) {
  const auto update = [](const ElementKernels& k, std::int64_t count, float* parameter, const float* gradient, float* a,
                         float* b, float* c) {
    for (const float scale : {1.0F, 3.0F}) {
      const ElementRun run{count, parameter, gradient, {a, b, c}, scale, scale - 1};
      for (const bool centered : {false, true}) k.rmsprop({0.99F, 0.01F, 1e-8F, scale - 1, 0.01F, centered}, run);
      k.lion({0.9F, 0.1F, 0.99F, 0.01F, 0.999F, 1e-3F}, run);
      k.adagrad({0.01F, 1e-8F}, run);
    }
  };
  compare(kernels, kernels_for<Instructions::plain, ElementKernels>(), update);
}

void check(const SquareKernels& kernels) {
  for (const std::int64_t count : {1, 15, 16, 100, 5000}) {
    const auto x = numbers(count, 100);
    const double sum = kernels_for<Instructions::plain, SquareKernels>().sum({x.data(), count, x.data()});
    CHECK(kernels.sum({x.data(), count, x.data()}) == sum);
    double squares = 0;
    for (const float each : x) squares += number(each) * number(each);
    CHECK(sum == doctest::Approx(squares).epsilon(1e-12));
  }
}

// The plain table rounds in another way, and LibTorch's kernel is its oracle elsewhere.
void check(const AdamKernels& kernels) {
  if (!has(Instructions::avx2) || &kernels == &kernels_for<Instructions::plain, AdamKernels>()) return;
  const auto& others = kernels_for<Instructions::avx2, AdamKernels>();
  for (const float scale : {1.0F, 3.0F}) {
    for (const float mean_share : {0.1F, 0.6F}) {
      const AdamNumbers numbers{.grad_scale = scale,
                                .decay = 0.999F,
                                .mean_share = mean_share,
                                .beta2 = 0.99F,
                                .square_share = 0.01F,
                                .step_size = 0.01F,
                                .correction = 0.3F,
                                .eps = 1e-8F};
      compare(kernels, others,
              [&](const AdamKernels& k, std::int64_t count, float* parameter, const float* gradient, float* mean,
                  float* square, float*) { k.update(numbers, count, parameter, gradient, mean, square); });
      compare(kernels, others,
              [&](const AdamKernels& k, std::int64_t count, float* parameter, const float* gradient, float* mean,
                  float* square, float*) {
                CountedNoise noise(1, 2);
                noise.set_step(3);
                List<std::uint16_t> halves(static_cast<std::size_t>(2 * count), 0x3E00);
                k.update_bfloat16(numbers, noise, 5, count, parameter, gradient, halves.data(), halves.data() + count);
                std::memcpy(mean, halves.data(), static_cast<std::size_t>(count) * 2);
                std::memcpy(square, halves.data() + count, static_cast<std::size_t>(count) * 2);
              });
      compare(kernels, others,
              [&](const AdamKernels& k, std::int64_t count, float* parameter, const float* gradient, float* mean,
                  float* square, float* largest) {
                List<std::uint8_t> codes(static_cast<std::size_t>(2 * count), 200);
                const auto blocks = BlockQuantisation::blocks(count);
                List<float> most(static_cast<std::size_t>(2 * blocks), 0.5F);
                k.update_codes(numbers, {count, parameter, gradient, codes.data(), codes.data() + count, most.data(),
                                         most.data() + blocks});
                std::memcpy(mean, codes.data(), static_cast<std::size_t>(count));
                std::memcpy(square, codes.data() + count, static_cast<std::size_t>(count));
                std::copy_n(most.data(), std::min(count, blocks), largest);
              });
    }
  }
}

}  // namespace

TEST_CASE("kernels: each table of each instruction set equals plain loops") {
#define KERNELS(set, ...)                                 \
  if (has(Instructions::set)) {                           \
    CAPTURE(#set " " #__VA_ARGS__);                       \
    check(kernels_for<Instructions::set, __VA_ARGS__>()); \
  }
#include "base/kernels.inc"
#undef KERNELS
}

}  // namespace kernels_test
