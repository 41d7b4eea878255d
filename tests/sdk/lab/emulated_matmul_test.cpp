// emulated_matmul: the bits of a plain loop in integers, of MMA-Sim's Hopper and of exact fractions; and Hopper's loss.
#include <ATen/ATen.h>
#include <torch/types.h>
#include <vernier/error.h>
#include <vernier/lab/emulated_matmul.h>

#include <ATen/Parallel.h>
#if defined(__x86_64__)
#include <immintrin.h>
#endif
#include <cmath>
#include <cstring>
#include <random>
#include <string>
#include <vector>

#include "oracle.h"
#include "thrown.h"

namespace emulated_matmul_test {

using torch::Tensor;
using vernier::emulated_matmul;
using vernier::MatrixUnit;
using vernier::ScaleBlock;
using vernier::tensor_format;
using vernier::unit_operand;
using vernier::UnitOperand;

namespace {

// magnitude * 2^power with a sign; an odd magnitude is not needed.
struct Whole {
  bool is_negative = false;
  std::uint64_t magnitude = 0;
  int power = 0, exponent = 0;  // exponent: e(x) of the header
};

constexpr int no_exponent = -100000;

Whole whole_of(float x, int least) {
  Whole whole;
  whole.is_negative = std::signbit(x);
  if (x == 0) return whole;
  int power = 0;
  const double fraction = std::frexp(std::fabs(static_cast<double>(x)), &power);  // in [1/2, 1)
  whole.magnitude = static_cast<std::uint64_t>(fraction * (1 << 24));
  whole.power = power - 24;
  whole.exponent = std::max(power - 1, least);
  return whole;
}

// The number in units of 2^unit, cut toward zero.
std::int64_t in_units(const Whole& x, int unit) {
  if (x.magnitude == 0) return 0;  // zero has no power
  const int shift = x.power - unit;
  const auto cut = shift >= 0     ? static_cast<std::int64_t>(x.magnitude << shift)
                   : shift <= -64 ? 0
                                  : static_cast<std::int64_t>(x.magnitude >> -shift);
  return x.is_negative ? -cut : cut;
}

int length_of(std::uint64_t x) {
  int bits = 0;
  for (; x != 0; x >>= 1) ++bits;
  return bits;
}

// One step of the header's arithmetic, in integers.
float step_of(float sum, const std::vector<Whole>& products, int fraction) {
  const int mantissa = std::min(fraction, 23);  // the fraction bits of the result
  const auto s = whole_of(sum, -126);
  int largest = s.magnitude == 0 ? no_exponent : s.exponent;
  for (const auto& product : products) {
    if (product.magnitude != 0) largest = std::max(largest, product.exponent);
  }
  if (largest == no_exponent) return 0;
  const int unit = largest - fraction;
  std::int64_t total = in_units(s, unit);
  for (const auto& product : products) total += in_units(product, unit);
  auto magnitude = static_cast<std::uint64_t>(std::llabs(total));
  if (magnitude == 0) return 0;
  int power = unit;
  const int dropped = std::max(length_of(magnitude) - (1 + mantissa), -126 - mantissa - power);
  if (dropped > 0) {
    magnitude = dropped >= 64 ? 0 : magnitude >> dropped;
    power += dropped;
  }
  if (magnitude == 0) return 0;
  const double value =
      length_of(magnitude) + power > 128 ? HUGE_VAL : std::ldexp(static_cast<double>(magnitude), power);
  return static_cast<float>(total < 0 ? -value : value);
}

float element_of(const float* a, const int* a_least, const float* b, const int* b_least, std::int64_t k,
                 const MatrixUnit& of) {
  float sum = 0, total = 0;
  for (std::int64_t from = 0; from < k; from += of.chunk) {
    std::vector<Whole> products;
    float special = sum;
    for (auto i = from; i < std::min(k, from + of.chunk); ++i) {
      if (!std::isfinite(a[i]) || !std::isfinite(b[i])) {
        special += a[i] * b[i];
        continue;
      }
      const auto x = whole_of(a[i], a_least[i]), y = whole_of(b[i], b_least[i]);
      products.push_back(
          {x.is_negative != y.is_negative, x.magnitude * y.magnitude, x.power + y.power, x.exponent + y.exponent});
    }
    sum = std::isfinite(special) ? step_of(sum, products, of.fraction) : special;
    if (of.promote_every != 0 && (from + of.chunk) % of.promote_every == 0) {
      total += sum;
      sum = 0;
    }
  }
  return of.promote_every == 0 ? sum : total + sum;
}

std::vector<int> leasts_of(const UnitOperand& x) {
  if (!x.least_exponents.defined()) return std::vector<int>(static_cast<std::size_t>(x.numbers.numel()), -2000);
  const auto all = x.least_exponents.expand_as(x.numbers).to(torch::kInt32).contiguous();
  return {all.const_data_ptr<int>(), all.const_data_ptr<int>() + all.numel()};
}

// The product of matrices [n, k] and [k, m] by a loop over elements.
Tensor by_loop(const UnitOperand& a, const UnitOperand& b, const MatrixUnit& of) {
  const auto turned = b.numbers.t().contiguous(), x = a.numbers.contiguous();
  const bool is_of_all = b.least_exponents.defined() && b.least_exponents.dim() != 0;
  const UnitOperand columns{turned, is_of_all ? b.least_exponents.t() : b.least_exponents};
  const auto a_least = leasts_of(a), b_least = leasts_of(columns);
  const auto n = x.size(0), k = x.size(1), m = turned.size(0);
  auto y = torch::empty({n, m});
  for (std::int64_t i = 0; i < n; ++i) {
    for (std::int64_t j = 0; j < m; ++j) {
      y.mutable_data_ptr<float>()[i * m + j] =
          element_of(x.const_data_ptr<float>() + i * k, a_least.data() + i * k, turned.const_data_ptr<float>() + j * k,
                     b_least.data() + j * k, k, of);
    }
  }
  if (a.scale.defined()) y.mul_(a.scale);
  if (b.scale.defined()) y.mul_(b.scale);
  return y;
}

UnitOperand drawn(std::mt19937& random, std::int64_t rows, std::int64_t columns, const char* name, bool is_a) {
  auto x = torch::randn({rows, columns});
  const auto spread = random() % 4;
  if (spread == 1) x.mul_(torch::randint(-9, 9, {rows, columns}, torch::kFloat32).exp2_());
  if (spread == 2) x.mul_(torch::randint(-70, 60, {rows, columns}, torch::kFloat32).exp2_());
  if (spread == 3) x.mul_(torch::rand({rows, columns}).lt(0.4));  // zeros
  if (random() % 5 == 0) x.abs_();
  if (random() % 16 == 0) x.view({-1})[static_cast<std::int64_t>(random()) % x.numel()] = HUGE_VAL;
  if (random() % 16 == 0) x.view({-1})[static_cast<std::int64_t>(random()) % x.numel()] = -HUGE_VAL;
  if (random() % 16 == 0) x.view({-1})[static_cast<std::int64_t>(random()) % x.numel()] = std::nan("");
  auto format = tensor_format(name);
  if (format.block == 0 && format.element.bits <= 8 && random() % 2 == 0) format.block = -1;
  const auto block = format.block <= 0 ? vernier::per_tensor
                     : is_a            ? ScaleBlock{1, format.block}
                                       : ScaleBlock{format.block, 1};
  return unit_operand(x, format, block);
}

}  // namespace

TEST_CASE("emulated_matmul: 1,000 random products have the bits of a loop in integers") {
  torch::manual_seed(11);
  std::mt19937 random(12);
  const char* names[] = {"e4m3", "e5m2", "bf16", "nvfp4", "mxfp8", "fp16", "tf32", "e7m16", "int8", "posit8_1"};
  const std::int64_t chunks[] = {1, 4, 16, 32, 32, 48, 200};
  for (int i = 0; i < 1000; ++i) {
    const auto n = 1 + static_cast<std::int64_t>(random() % 7), m = 1 + static_cast<std::int64_t>(random() % 9),
               k = 1 + static_cast<std::int64_t>(random() % 150);
    const std::string left = names[random() % 10], right = random() % 2 == 0 ? left : names[random() % 10];
    MatrixUnit of;
    of.fraction = static_cast<int>(random() % 3 == 0 ? 13 : 3 + random() % 29);
    of.chunk = chunks[random() % 7];
    of.promote_every = of.chunk * static_cast<std::int64_t>(random() % 4);
    CAPTURE(i);
    CAPTURE(left);
    CAPTURE(right);
    const auto a = drawn(random, n, k, left.c_str(), true), b = drawn(random, k, m, right.c_str(), false);
    const auto y = emulated_matmul(a, b, of);
    CHECK(same_bits(y, by_loop(a, b, of)));
  }
}

TEST_CASE("emulated_matmul: large and odd shapes, batches, broadcasting, strides, and any number of threads") {
  torch::manual_seed(13);
  const auto bf16 = tensor_format("bf16");
  const MatrixUnit of{.fraction = 13, .chunk = 32, .promote_every = 128};
  const auto a = vernier::round_to(torch::randn({3, 2, 70, 333}), bf16),
             b = vernier::round_to(torch::randn({2, 333, 131}), bf16);
  const auto y = emulated_matmul(a, b, of);
  REQUIRE(y.sizes() == torch::IntArrayRef({3, 2, 70, 131}));
  CHECK(same_bits(y[1][1], by_loop({a[1][1]}, {b[1]}, of)));
  CHECK(same_bits(emulated_matmul(b.transpose(-2, -1), a.transpose(-2, -1), of).transpose(-2, -1), y));
  CHECK(same_bits(emulated_matmul(a, b.slice(2, 0, 3), of), y.slice(3, 0, 3)));
  CHECK(emulated_matmul(torch::ones({4, 0}), torch::ones({0, 5}), of).eq(0).all().item<bool>());
  CHECK(emulated_matmul(torch::ones({0, 4, 3}), torch::ones({3, 2}), of).sizes() == torch::IntArrayRef({0, 4, 2}));
  const auto threads = at::get_num_threads();
  at::set_num_threads(1);
  CHECK(same_bits(emulated_matmul(a, b, of), y));
  at::set_num_threads(7);
  CHECK(same_bits(emulated_matmul(a, b, of), y));
  at::set_num_threads(threads);
}

TEST_CASE("emulated_matmul: subnormal float32, overflow, infinities and NaN") {
  const MatrixUnit of{.fraction = 10, .chunk = 2};
  const auto dot = [&](const std::vector<float>& a, const std::vector<float>& b, const MatrixUnit& by) {
    const auto x = torch::tensor(a).unsqueeze(0), y = torch::tensor(b).unsqueeze(1);
    const auto found = emulated_matmul(x, y, by);
    CHECK(same_bits(found, by_loop({x}, {y}, by)));
    return found.item<float>();
  };
  const float infinity = HUGE_VALF;
  CHECK(dot({0x1p127F, 0x1p127F}, {1, 1}, of) == infinity);
  CHECK(dot({-0x1p127F, 0, -0x1p127F}, {1, 1, 1}, of) == -infinity);
  CHECK(dot({0x1p127F, 0x1p127F, -0x1p127F}, {1, 1, 1}, of) == infinity);  // an infinity stays one
  CHECK(std::isnan(dot({0x1p127F, 0x1p127F, -infinity}, {1, 1, 1}, of)));
  CHECK(dot({infinity, 3, 4, 1}, {1, 1, -7, 5}, of) == infinity);
  CHECK(std::isnan(dot({infinity, 1}, {0, 1}, of)));
  CHECK(std::isnan(dot({1, std::nanf("")}, {1, 0}, of)));
  CHECK(dot({0x1p-70F}, {0x1p-70F}, of) == 0);  // below 2^(-126 - 10)
  CHECK(dot({0x1p-65F}, {0x1p-65F}, of) == 0x1p-130F);
  CHECK(dot({0x1p-149F, 0x1.8p-126F}, {1, 0x1p-3F}, {.fraction = 23, .chunk = 2}) == 0x1.8p-129F + 0x1p-149F);
  CHECK_FALSE(std::signbit(dot({-0.0F, 0}, {1, 1}, of)));
  CHECK_FALSE(std::signbit(dot({-1, 1}, {1, 1}, of)));
}

TEST_CASE("emulated_matmul: the units of Hopper and Ada as MMA-Sim has them, and exact fractions") {
  const Oracle recorded("accumulators");
  const auto e4m3 = tensor_format("e4m3"), e5m2 = tensor_format("e5m2");
  for (const std::string name : {"hopper.e4m3", "hopper.e5m2", "hopper.mixed", "ada.e4m3"}) {
    CAPTURE(name);
    const auto& left = name == "hopper.e5m2" ? e5m2 : e4m3;
    const auto& right = name == "hopper.e5m2" || name == "hopper.mixed" ? e5m2 : e4m3;
    const auto a = unit_operand(recorded[name + ".a"], left), b = unit_operand(recorded[name + ".b"], right);
    CHECK(torch::equal(a.numbers, recorded[name + ".a"]));  // these are numbers of the format already
    const std::int64_t chunk = name == "ada.e4m3" ? 16 : 32;
    CHECK(same_bits(emulated_matmul(a, b, {.fraction = 13, .chunk = chunk}), recorded[name + ".y"]));
  }
  struct Row {
    const char* name;
    MatrixUnit of;
  };
  const Row rows[] = {{"exact.bf16", {.fraction = 13, .chunk = 16, .promote_every = 64}},
                      {"exact.fp16", {.fraction = 10, .chunk = 8}},
                      {"exact.e4m3", {.fraction = 23, .chunk = 32, .promote_every = 32}},
                      {"exact.e7m16", {.fraction = 16, .chunk = 4}}};
  for (const auto& row : rows) {
    CAPTURE(row.name);
    const std::string name = row.name;
    const auto format = tensor_format(name.substr(6));
    const auto a = unit_operand(recorded[name + ".a"], format), b = unit_operand(recorded[name + ".b"], format);
    CHECK(same_bits(emulated_matmul(a, b, row.of), recorded[name + ".y"]));
  }
}

namespace {

// y = a b + c of each row: c is the one product of a first step.
Tensor with_sum(const Tensor& a, const Tensor& b, const Tensor& c, const char* format, const MatrixUnit& unit) {
  const auto first = torch::zeros({a.size(0), unit.chunk});
  auto one = first.clone(), sum = first.clone();
  one.select(1, 0).fill_(1);
  sum.select(1, 0).copy_(c.squeeze(1));
  const auto of = [&](const Tensor& begin, const Tensor& x) {
    const auto rounded = unit_operand(x.to(torch::kFloat32), tensor_format(format));
    const auto least = rounded.least_exponents.expand_as(x);
    return UnitOperand{torch::cat({begin, rounded.numbers}, 1),
                       torch::cat({torch::full_like(begin, -2000, torch::kShort), least}, 1)};
  };
  const auto x = of(sum, a), w = of(one, b);
  auto y = torch::empty_like(c);
  for (std::int64_t i = 0; i < a.size(0); ++i) {
    y[i] = emulated_matmul({x.numbers[i].unsqueeze(0), x.least_exponents[i].unsqueeze(0)},
                           {w.numbers[i].unsqueeze(1), w.least_exponents[i].unsqueeze(1)}, unit)[0];
  }
  return y;
}

}  // namespace

TEST_CASE("matrix_unit: the sums of GPUs, and of AMD's units as MMA-Sim has them") {
  const Oracle recorded("matrix_units");
  int compared = 0;
  for (const auto& [key, c] : recorded.tensors()) {
    if (!key.ends_with(".c")) continue;
    const auto place = key.substr(0, key.size() - 1), unit_name = key.substr(0, key.find('.'));
    const auto name = place.substr(unit_name.size() + 1, place.size() - unit_name.size() - 2);
    CAPTURE(place);
    auto unit = vernier::matrix_unit(unit_name, tensor_format(name).element.bits);
    const auto of = [&](const Tensor& sum) {
      return with_sum(recorded[place + "a"], recorded[place + "b"], sum, name.c_str(), unit);
    };
    CHECK(same_bits(of(unit_name == "h100" && unit.fraction == 13 ? torch::zeros_like(c) : c), recorded[place + "y"]));
    ++compared;
    if (!recorded.has(place + "half")) continue;
    unit.is_half = true;
    CHECK(same_bits(of(c.to(torch::kHalf).to(torch::kFloat32)), recorded[place + "half"]));
  }
  CHECK(compared == 26);
}

TEST_CASE("matrix_unit: a B200 multiplies sums of 16 nvfp4 or mxfp4 products by block scales, as MMA-Sim has it") {
  const Oracle recorded("matrix_units");
  const auto unit = vernier::matrix_unit("b200", 4);
  for (const std::string name : {"nvfp4", "mxfp4"}) {
    CAPTURE(name);
    const auto place = "b200." + name + ".";
    const auto c = recorded[place + "start"], y = recorded[place + "y"];
    std::int64_t inside = 0;
    for (std::int64_t i = 0; i < 200; ++i) {
      // The first step has one product, which is c.
      const auto of = [&](const char* operand, const Tensor& first) {
        const auto in = [&](const std::string& key) { return recorded[place + key][i].to(torch::kFloat32); };
        const auto numbers = in(operand), scales = in(std::string(operand) + "_scale");
        const auto each = scales.repeat_interleave(numbers.numel() / scales.numel());
        const auto begin = torch::cat({first.view(1), torch::zeros({63})});
        return UnitOperand{torch::cat({begin, numbers * each}), {}, {}, {}, torch::cat({torch::ones({64}), each})};
      };
      const auto row = [](const UnitOperand& x, std::int64_t dimension) {
        return UnitOperand{x.numbers.unsqueeze(dimension), {}, {}, {}, x.inner_scales.unsqueeze(dimension)};
      };
      const auto a = row(of("a", c[i]), 0), b = row(of("b", torch::ones({1})), 1);
      CHECK(same_bits(emulated_matmul(a, b, unit)[0], y[i]));
      inside += emulated_matmul({a.numbers}, {b.numbers}, vernier::matrix_unit("b200", 8))[0]
                    .eq(y[i])
                    .sum()
                    .item<std::int64_t>();
    }
    CHECK(inside < 200);  // sums of 32 products with their scales differ
  }
  const auto x = torch::randn({7, 96}), w = torch::randn({96, 130});
  const auto nvfp4 = tensor_format("nvfp4");
  const auto a = unit_operand(x, nvfp4, {1, 16}), b = unit_operand(w, nvfp4, {16, 1});
  const auto y = emulated_matmul(a, b, unit);
  CHECK(torch::allclose(y, at::matmul(vernier::round_to(x, nvfp4, {1, 16}), vernier::round_to(w, nvfp4, {16, 1})), 1e-5,
                        1e-5));
  const auto without_scale = [](UnitOperand of) {
    of.scale = Tensor();
    return of;
  };
  const auto turn = [&](const Tensor& of, vernier::ScaleBlock block) {
    return without_scale(unit_operand(of.t(), nvfp4, block));
  };
  CHECK(same_bits(emulated_matmul(turn(w, {1, 16}), turn(x, {16, 1}), unit),
                  emulated_matmul(without_scale(a), without_scale(b), unit).t()));
}

#if defined(__x86_64__)
namespace {

// Returns a [n, k] times b [k, 16] of bfloat16 by vdpbf16ps, two products an instruction.
__attribute__((target("avx512f,avx512bf16"))) Tensor by_instruction(const Tensor& a, const Tensor& b) {
  const auto n = a.size(0), k = a.size(1);
  const auto pairs = b.view({k / 2, 2, 16}).transpose(1, 2).contiguous();  // [k / 2, 16, 2]
  const auto* a_numbers = static_cast<const std::uint16_t*>(a.const_data_ptr());
  const auto* pair_numbers = static_cast<const std::uint16_t*>(pairs.const_data_ptr());
  auto y = torch::empty({n, 16});
  for (std::int64_t i = 0; i < n; ++i) {
    __m512 sum = _mm512_setzero_ps();
    for (std::int64_t j = 0; j < k / 2; ++j) {
      std::uint16_t left[32];  // _mm512_set1_epi32() makes clang 16 crash here
      for (std::int64_t c = 0; c < 32; ++c) left[c] = a_numbers[i * k + 2 * j + c % 2];
      sum = _mm512_dpbf16_ps(sum, reinterpret_cast<__m512bh>(_mm512_loadu_si512(left)),
                             reinterpret_cast<__m512bh>(_mm512_loadu_si512(pair_numbers + j * 32)));
    }
    _mm512_storeu_ps(y.mutable_data_ptr<float>() + i * 16, sum);
  }
  return y;
}

}  // namespace

TEST_CASE("matrix_unit: avx512_bf16 has the bits of the processor's instruction in a million products") {
  if (!__builtin_cpu_supports("avx512bf16")) return;
  torch::manual_seed(16);
  const auto drawn = [](std::int64_t rows, std::int64_t columns, int least) {
    return (torch::randn({rows, columns}) * torch::randint(least, 20, {rows, columns}, torch::kFloat32).exp2_())
        .to(torch::kBFloat16);
  };
  for (const int least : {-6, -140}) {  // the products of the second are near 2^-126 and below
    const auto a = drawn(256, 128, least), b = drawn(128, 16, least < -6 ? -30 : least);
    const auto bf16 = tensor_format("bf16");
    const auto y =
        emulated_matmul(unit_operand(a, bf16), unit_operand(b, bf16), vernier::matrix_unit("avx512_bf16", 16));
    CHECK(same_bits(y, by_instruction(a.contiguous(), b.contiguous())));
  }
}
#endif

TEST_CASE("emulated_matmul: float32 scales of blocks multiply the sum of each promotion") {
  torch::manual_seed(17);
  auto format = tensor_format("e4m3");
  format.block = 128;
  const auto x = torch::randn({5, 300}), w = torch::randn({300, 7}).mul_(0.01);
  const auto a = unit_operand(x, format, {1, 128}), b = unit_operand(w, format, {128, 128});
  CHECK(torch::equal(a.numbers * a.block_scales, vernier::round_to(x, format, {1, 128})));
  CHECK(torch::equal(b.numbers * b.block_scales, vernier::round_to(w, format, {128, 128})));
  const MatrixUnit unit{.fraction = 13, .chunk = 32, .promote_every = 64}, part{.fraction = 13, .chunk = 32};
  auto y = torch::zeros({5, 7});
  for (std::int64_t from = 0; from < 300; from += 64) {
    const auto end = std::min<std::int64_t>(300, from + 64);
    const auto sum = emulated_matmul({a.numbers.slice(1, from, end), a.least_exponents.slice(1, from, end)},
                                     {b.numbers.slice(0, from, end), b.least_exponents.slice(0, from, end)}, part);
    for (std::int64_t i = 0; i < 5; ++i) {
      for (std::int64_t j = 0; j < 7; ++j) {
        const float scale = a.block_scales[i][from].item<float>() * b.block_scales[from][j].item<float>();
        y[i][j] = std::fma(sum[i][j].item<float>(), scale, y[i][j].item<float>());
      }
    }
  }
  CHECK(same_bits(emulated_matmul(a, b, unit), y));
  CHECK(same_bits(emulated_matmul({b.numbers.t(), b.least_exponents.t(), {}, b.block_scales.t()},
                                  {a.numbers.t(), a.least_exponents.t(), {}, a.block_scales.t()}, unit),
                  y.t().contiguous()));
}

TEST_CASE("emulated_matmul: Hopper loses the digits that are published for 4096 products") {
  torch::manual_seed(14);
  auto e4m3 = tensor_format("e4m3");
  e4m3.block = -1;  // one scale for a tensor
  const MatrixUnit never, promoted{.promote_every = 128};
  const auto errors = [&](const Tensor& x, const Tensor& w, const MatrixUnit& of) {
    const auto a = unit_operand(x, e4m3), b = unit_operand(w, e4m3);
    const auto exact = at::matmul(a.numbers.to(torch::kFloat64), b.numbers.to(torch::kFloat64));
    const auto found = emulated_matmul(a.numbers, b.numbers, of);
    return ((found - exact) / exact).abs();
  };
  const auto median = [](const Tensor& x) { return x.median().item<double>(); };
  // MMA-Sim with 40 products of uniform numbers has 7.5 % and 0.055 %.
  const auto uniform = torch::rand({400, 4096}), other = torch::rand({4096, 400});
  CHECK(median(errors(uniform, other, never)) == doctest::Approx(0.075).epsilon(0.02));
  CHECK(median(errors(uniform, other, promoted)) == doctest::Approx(0.00055).epsilon(0.03));
  // With 40 of Gaussian numbers it has 0.16 % and 0.017 %, whose largest are 7.4 % and 1.9 %; a median of so few varies
  // by a quarter. DeepSeek-V3 found nearly 2 % as the largest.
  const auto normal = torch::randn({400, 4096}), another = torch::randn({4096, 400});
  const auto plain = errors(normal, another, never), split = errors(normal, another, promoted);
  CHECK(median(plain) == doctest::Approx(0.0012).epsilon(0.4));
  CHECK(median(split) == doctest::Approx(0.00014).epsilon(0.4));
  const auto largest_of_40 = median(std::get<0>(plain.reshape({-1, 40}).max(1)));
  CHECK(largest_of_40 > 0.01);
  CHECK(largest_of_40 < 0.08);
}

TEST_CASE("unit_operand: the numbers times the scale are those of round_to") {
  torch::manual_seed(15);
  for (const char* name : {"e4m3", "e5m2", "bf16", "mxfp8", "nvfp4", "mxint8", "posit8_1", "int8"}) {
    for (const bool is_turned : {false, true}) {
      CAPTURE(name);
      auto x = torch::randn({2, 37, 50}).mul_(torch::randint(-12, 12, {2, 37, 1}, torch::kFloat32).exp2_());
      if (is_turned) x = x[0].t();
      auto format = tensor_format(name);
      if (format.block == 0) format.block = -1;
      const auto block = format.block > 0 ? ScaleBlock{1, format.block} : vernier::per_tensor;
      const auto unit = unit_operand(x, format, block);
      const auto y = vernier::round_to(x, format, block);
      CHECK(torch::allclose(unit.numbers * unit.scale, y, 3e-7, 0));
      if (!format.tensor_scale) CHECK(torch::equal(unit.numbers * unit.scale, y));
    }
  }
  const auto e4m3 = unit_operand(torch::ones({2, 2}), tensor_format("e4m3"));
  CHECK(e4m3.least_exponents.item<std::int16_t>() == -6);
  const auto mxfp8 = unit_operand(torch::full({1, 32}, 0x1p20F), tensor_format("mxfp8"), {1, 32});
  CHECK(mxfp8.least_exponents[0][0].item<std::int16_t>() == -6 + 20 - 8);
}

TEST_CASE("emulated_matmul: bad arguments end in one line") {
  const auto x = torch::ones({2, 3});
  const auto text = [](const auto& body) { return thrown_by(body).text; };
  CHECK(says(text([&] { emulated_matmul(x, x, {}); }), "[2, 3] and [2, 3] do not fit"));
  CHECK(says(text([&] { emulated_matmul(x.to(torch::kFloat64), x.t(), {}); }), "a is of Double"));
  CHECK(says(text([&] { emulated_matmul(x, torch::ones({3}), {}); }), "b is of shape [3]"));
  CHECK(says(text([&] { emulated_matmul({x, torch::zeros({3}, torch::kShort)}, {x.t()}, {}); }), "int16 of its shape"));
  CHECK(says(text([&] { emulated_matmul(x, x.t(), {.fraction = 32}); }), "fraction is 32, and 1 to 31"));
  CHECK(says(text([&] { emulated_matmul(x, x.t(), {.chunk = 0}); }), "chunk is 0"));
  CHECK(says(text([&] { emulated_matmul(x, x.t(), {.promote_every = 100}); }), "multiples of chunk (32)"));
  const UnitOperand uneven{x, {}, {}, torch::tensor({{1.F, 1.F, 2.F}, {1.F, 1.F, 1.F}})};
  CHECK(says(text([&] { emulated_matmul(uneven, {x.t()}, {.chunk = 2, .promote_every = 4}); }), "promote within"));
  CHECK(says(text([&] { emulated_matmul(uneven, {x.t()}, {.chunk = 2}); }), "promote_every is 0"));
  const UnitOperand turn{
      x.t().contiguous(), {}, {}, uneven.block_scales.t()};  // the wider operand goes first in the kernel
  CHECK(says(text([&] {
               emulated_matmul({torch::ones({9, 3})}, turn, {.chunk = 2, .promote_every = 4});
             }),
             "blocks of b"));
  const UnitOperand small{x, {}, {}, {}, uneven.block_scales};
  CHECK(says(text([&] { emulated_matmul(small, {x.t()}, vernier::matrix_unit("b200", 4)); }), "16 numbers of a"));
  CHECK(says(text([&] { vernier::matrix_unit("h10", 8); }), "did you mean \"h100\"?"));
  CHECK(says(text([&] { vernier::matrix_unit("v100", 19); }), "up to 16 bits, and these have 19"));
}

}  // namespace emulated_matmul_test
