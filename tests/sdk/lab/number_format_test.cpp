// Number formats and their blocks: codes and roundings equal ml_dtypes, gfloat, torchao and exact arithmetic.
#include <vernier/error.h>
#include <vernier/lab/tensor_format.h>

#include <ATen/Parallel.h>
#include <cmath>
#include <random>
#include <string>
#include <vector>

#include "long_form.h"
#include "oracle.h"
#include "thrown.h"

namespace number_format_test {

using vernier::Draw;
using vernier::number_format;
using vernier::NumberFormat;
using vernier::round_to;
using vernier::Rounding;
using vernier::tensor_format;
using vernier::TensorFormat;

namespace {

const double infinity = HUGE_VAL, not_a_number = std::nan("");
const char* const of_ml_dtypes[] = {"e4m3",     "e5m2",        "e4m3_ieee", "e3m4", "e4m3fnuz",
                                    "e5m2fnuz", "e4m3b11fnuz", "e2m3",      "e3m2", "e2m1"};

TensorFormat unscaled(const NumberFormat& element) {
  TensorFormat format;
  format.name = element.name;
  format.element = element;
  return format;
}

bool same(double a, double b) {
  return (std::isnan(a) && std::isnan(b)) || (a == b && std::signbit(a) == std::signbit(b));
}

// All numbers of a format, ascending; -0 and NaN left out.
std::vector<double> numbers_of(const NumberFormat& format) {
  std::vector<double> all;
  for (std::uint32_t code = 0; code < 1U << format.bits; ++code) {
    const double value = format.decode(code);
    const bool is_unused = format.kind == NumberFormat::Kind::fixed && format.is_symmetric && value < -format.largest();
    if (std::isfinite(value) && (value != 0 || !std::signbit(value)) && !is_unused) all.push_back(value);
  }
  std::sort(all.begin(), all.end());
  return all;
}

torch::Tensor as_float32(const std::vector<double>& values) {
  return torch::tensor(values, torch::kFloat64).to(torch::kFloat32);
}

// The rounding of a tensor by one number after another.
torch::Tensor one_by_one(const torch::Tensor& x, const NumberFormat& format, Rounding rounding) {
  auto y = torch::empty_like(x);
  for (std::int64_t i = 0; i < x.numel(); ++i) {
    y.data_ptr<float>()[i] = static_cast<float>(format.round(x.const_data_ptr<float>()[i], rounding));
  }
  return y;
}

}  // namespace

TEST_CASE("number formats: the codes of every format are those of ml_dtypes and gfloat, and back") {
  const Oracle oracle("number_formats");
  int formats = 0;
  for (const auto& [key, values] : oracle.tensors()) {
    if (!key.starts_with("decode.")) continue;
    ++formats;
    const auto format = number_format(key.substr(7));
    CAPTURE(format.name);
    REQUIRE(values.numel() == std::int64_t{1} << format.bits);
    for (std::uint32_t code = 0; code < 1U << format.bits; ++code) {
      CAPTURE(code);
      const double value = format.decode(code), expected = values[code].item<float>();
      CHECK(same(value, expected));
      if (!std::isnan(value) && !(std::isinf(value) && format.saturate)) CHECK(format.encode(value) == code);
    }
  }
  CHECK(formats == 27);
}

TEST_CASE("number formats: a cast without saturation is ml_dtypes' at all ties and beside them") {
  const Oracle oracle("number_formats");
  const auto x = oracle["cast.numbers"];
  for (const std::string name : of_ml_dtypes) {
    CAPTURE(name);
    auto format = number_format(name);
    const auto codes = oracle["cast." + name];
    format.saturate = format.nan == NumberFormat::Nan::none;
    const auto rounded = round_to(x, unscaled(format));
    std::int64_t differ = 0;
    for (std::int64_t i = 0; i < x.numel(); ++i) {
      const float number = x.const_data_ptr<float>()[i];
      if (std::isnan(number)) continue;
      const double expected = format.decode(codes.const_data_ptr<std::uint8_t>()[i]);
      differ += same(format.round(number), expected) && same(rounded.const_data_ptr<float>()[i], expected) ? 0 : 1;
    }
    CHECK(differ == 0);
  }
}

// Each row of the table of a page on these formats: codes of 0.3, -1.1875, 2^-10, 3 * 2^-10, 17, 19, -232.
TEST_CASE("number formats: posits and P3109 round as softposit and gfloat do, other roundings as defined") {
  const double x[] = {0.3, -1.1875, std::ldexp(1, -10), 3 * std::ldexp(1, -10), 17, 19, -232};
  struct Row {
    const char* name;
    Rounding rounding;
    std::uint32_t codes[7];
  };
  const Rounding even = Rounding::nearest_even;
  const Row rows[] = {
      {"e4m3", even, {0x2a, 0xba, 0x00, 0x02, 0x58, 0x5a, 0xf6}},
      {"e4m3", Rounding::nearest_away, {0x2a, 0xba, 0x01, 0x02, 0x59, 0x5a, 0xf7}},
      {"e4m3", Rounding::toward_zero, {0x29, 0xb9, 0x00, 0x01, 0x58, 0x59, 0xf6}},
      {"e5m2", even, {0x35, 0xbd, 0x14, 0x1a, 0x4c, 0x4d, 0xdb}},
      {"e4m3fnuz", even, {0x32, 0xc2, 0x01, 0x03, 0x60, 0x62, 0xfe}},
      {"k8p4", even, {0x32, 0xc2, 0x01, 0x03, 0x60, 0x62, 0xfe}},
      {"e3m2", even, {0x05, 0x2d, 0x00, 0x00, 0x1c, 0x1d, 0x3f}},
      {"e2m1", even, {0x1, 0xa, 0x0, 0x0, 0x7, 0x7, 0xf}},
      {"fp16", even, {0x34cd, 0xbcc0, 0x1400, 0x1a00, 0x4c40, 0x4cc0, 0xdb40}},
      {"posit8_2", even, {0x32, 0xbe, 0x0c, 0x0f, 0x60, 0x61, 0x91}},
      {"posit8_1", even, {0x23, 0xbd, 0x02, 0x04, 0x70, 0x71, 0x84}},
      {"posit8_0", even, {0x13, 0xba, 0x01, 0x01, 0x7c, 0x7c, 0x81}},
  };
  for (const auto& row : rows) {
    CAPTURE(row.name);
    const auto format = number_format(row.name);
    for (int i = 0; i < 7; ++i) {
      CAPTURE(x[i]);
      CHECK(format.encode(x[i], row.rounding) == row.codes[i]);
    }
  }
  const auto posit = number_format("posit8_2");
  CHECK(posit.encode(std::ldexp(1, 22)) == 0x7e);  // the tie between 2^20 and 2^24, which is not their middle
  CHECK(posit.encode(std::nextafter(std::ldexp(1, 22), HUGE_VAL)) == 0x7f);
  CHECK(posit.encode(1e-300) == 0x01);
  CHECK(posit.encode(-1e300) == 0x81);
  CHECK(std::isnan(posit.decode(0x80)));
  // fixpnt8 with 4 fraction bits of universal_dtypes
  const auto fixed = number_format("fixed8.4");
  CHECK(fixed.encode(0.03125) == 0x00);
  CHECK(fixed.encode(0.09375) == 0x02);
  CHECK(fixed.encode(100) == 0x7f);
  CHECK(fixed.encode(-100) == 0x80);
  CHECK(number_format("int8").encode(-1000) == 0x81);
  // Nothing is rounded twice: these are beside a tie by less than float32 has.
  CHECK(number_format("e4m3").encode(std::ldexp(1, -10) + std::ldexp(1, -40)) == 0x01);
  CHECK(number_format("fp16").encode(1 + std::ldexp(1, -11) + std::ldexp(1, -40)) == 0x3c01);
}

TEST_CASE("number formats: beyond the largest number") {
  struct Row {
    const char* name;
    bool saturates;
    double x, y;
  };
  const Row rows[] = {
      {"e4m3", false, 464, 448},        {"e4m3", false, 465, not_a_number},
      {"e4m3", true, 1e9, 448},         {"e4m3", true, -infinity, -448},
      {"e5m2", false, 61440, infinity}, {"e5m2", false, 61439, 57344},
      {"e5m2", false, -1e9, -infinity}, {"e2m1", false, 100, 6},
      {"e2m1", false, -infinity, -6},   {"k8p4", false, 1e9, infinity},
      {"k8p4_finite", true, 1e9, 240},  {"fp16", false, 65520, infinity},
  };
  for (const auto& row : rows) {
    CAPTURE(row.name);
    CAPTURE(row.x);
    auto format = number_format(row.name);
    format.saturate = row.saturates;
    CHECK(same(format.round(row.x), row.y));
    CHECK(same(round_to(as_float32({row.x}), unscaled(format)).item<float>(), row.y));
  }
  CHECK(number_format("e5m2").round(1e9, Rounding::toward_zero) == 57344);
  CHECK(std::isnan(number_format("e2m1").round(not_a_number)));
  CHECK(says(thrown_by([] { number_format("e2m1").encode(not_a_number); }).text, "no code for NaN"));
}

// Exhaustive: every tie of every format, both float32 neighbours, and all roundings.
TEST_CASE("number formats: a tensor rounds as its numbers do, and no rounding is wrong by more than its rule") {
  std::vector<NumberFormat> formats;
  for (const char* name : {"e4m3", "e5m2", "e2m1", "e3m2", "e4m3fnuz", "k8p4", "k8p1", "k8p6_finite", "int8", "int4",
                           "fixed8.4", "posit8_1", "e1m4", "e6m1", "e5m0", "fp16", "bf16", "e6m9", "e7m4"}) {
    formats.push_back(number_format(name));
  }
  auto flushing = number_format("e4m3");
  flushing.name = "e4m3 without subnormals";
  flushing.subnormals = false;
  formats.push_back(flushing);
  for (const auto& format : formats) {
    CAPTURE(format.name);
    const auto all = numbers_of(format);
    std::vector<double> values;
    const std::size_t stride = all.size() > 4096 ? 13 : 1;
    for (std::size_t i = 0; i + 1 < all.size(); i += stride) {
      const double tie = (all[i] + all[i + 1]) / 2;
      for (const double value : {all[i], tie}) {
        const auto near = static_cast<float>(value);
        values.insert(values.end(), {near, std::nextafter(near, -HUGE_VALF), std::nextafter(near, HUGE_VALF)});
      }
      // Nearest is nearest, unless it is a posit, whose code is rounded.
      if (format.kind == NumberFormat::Kind::posit) continue;
      for (const double x : {std::nextafter(tie, all[i]), std::nextafter(tie, all[i + 1])}) {
        if (x == tie) continue;
        const double y = format.round(x);
        CHECK(std::fabs(y - x) <= std::min(std::fabs(all[i] - x), std::fabs(all[i + 1] - x)));
        CHECK(std::fabs(format.round(x, Rounding::toward_zero)) <= std::fabs(x));
      }
      const double even = format.round(tie), away = format.round(tie, Rounding::nearest_away);
      CHECK((even == all[i] || even == all[i + 1]));
      CHECK(away == (std::fabs(all[i]) > std::fabs(all[i + 1]) ? all[i] : all[i + 1]));
      const bool is_flushed = !format.subnormals && std::fabs(tie) < format.least_normal();
      if (!is_flushed && format.kind == NumberFormat::Kind::floating) CHECK((format.encode(even) & 1) == 0);
    }
    values.insert(values.end(), {0.0, -0.0, 1e38, -1e38, 1e-45, -1e-45, 1e-38, infinity, -infinity, not_a_number});
    const auto x = as_float32(values);
    for (const auto rounding : {Rounding::nearest_even, Rounding::nearest_away, Rounding::toward_zero}) {
      Draw draw;
      draw.rounding = rounding;
      CHECK(same_bits(round_to(x, unscaled(format), vernier::per_tensor, draw), one_by_one(x, format, rounding)));
    }
  }
}

TEST_CASE("number formats: bfloat16 and float16 are LibTorch's") {
  torch::manual_seed(1);
  const auto x =
      torch::randint(-(1LL << 31), 1LL << 31, {1 << 18}, torch::kInt64).to(torch::kInt32).view(torch::kFloat32);
  for (const auto& [name, dtype] : {std::pair("bf16", torch::kBFloat16), std::pair("fp16", torch::kFloat16)}) {
    CAPTURE(name);
    CHECK(same_bits(round_to(x, tensor_format(name)), x.to(dtype).to(torch::kFloat32)));
  }
}

TEST_CASE("number formats: stochastic rounding is unbiased, and the same for any number of threads") {
  const auto count = is_long() ? 10'000'000 : 1 << 20;
  std::vector<const char*> names = {"e4m3", "e2m1", "bf16", "int8", "fp16"};
  if (is_long()) names.insert(names.end(), {"e5m2", "e4m3fnuz", "e3m2", "e2m3", "tf32", "k8p3", "fixed8.4", "int4"});
  for (const auto* name : names) {
    CAPTURE(name);
    const auto format = tensor_format(name);
    for (const double value : {0.3, 1.7, 2.00390625, -5.3}) {
      CAPTURE(value);
      const auto x = torch::full({count}, value, torch::kFloat32);
      Draw draw{Rounding::stochastic, 7};
      const auto y = round_to(x, format, vernier::per_tensor, draw).to(torch::kFloat64);
      const double exact = x[0].item<float>();
      const double low = format.element.round(exact, Rounding::toward_zero);
      const double error = y.mean().item<double>() - exact, deviation = y.std().item<double>();
      CHECK(std::fabs(error) <= 4 * deviation / std::sqrt(count) + 1e-7 * std::fabs(exact));
      if (low == exact) CHECK(y.eq(exact).all().item<bool>());
    }
  }
  torch::manual_seed(2);
  const auto x = torch::randn({300, 512});
  const Draw draw{Rounding::stochastic, 11};
  const auto threads = at::get_num_threads();
  at::set_num_threads(1);
  const auto once = round_to(x, tensor_format("nvfp4"), {1, 16}, draw);
  at::set_num_threads(4);
  CHECK(torch::equal(round_to(x, tensor_format("nvfp4"), {1, 16}, draw), once));
  at::set_num_threads(threads);
  CHECK_FALSE(torch::equal(round_to(x, tensor_format("nvfp4"), {1, 16}, {Rounding::stochastic, 12}), once));
  // With few bits a chance is a multiple of 2^-bits, whose mean P3109's second rule keeps.
  const auto few = round_to(torch::full({count}, 1.7F * 0.125F + 1), tensor_format("e4m3"), vernier::per_tensor,
                            {Rounding::stochastic, 3, 2});
  CHECK(few.gt(1.2F).to(torch::kFloat64).mean().item<double>() == doctest::Approx(0.75).epsilon(0.01));
}

TEST_CASE("number formats: blocks are torchao's in all four scale rules") {
  const Oracle oracle("number_formats");
  const auto x = oracle["block.x"];
  for (const std::string name : {"mxfp8", "mxfp8_e5m2", "mxfp6", "mxfp6_e3m2", "mxfp4"}) {
    for (const std::string rule : {"floor", "ceil", "even", "rceil"}) {
      CAPTURE(name);
      CAPTURE(rule);
      auto format = tensor_format(name);
      format.rule = vernier::scale_rule_named(rule);
      CHECK(torch::equal(round_to(x, format, {1, 32}), oracle["block." + name + "." + rule]));
      // The same blocks along the other dimension, and through another layout.
      const auto turned = round_to(x.t().contiguous(), format, {32, 1});
      CHECK(torch::equal(turned.t(), oracle["block." + name + "." + rule]));
      CHECK(torch::equal(round_to(x.t(), format, {32, 1}).t(), oracle["block." + name + "." + rule]));
    }
  }
  CHECK(torch::equal(round_to(oracle["nvfp4.x"], tensor_format("nvfp4"), {1, 16}), oracle["nvfp4.y"]));
}

// The element that is amax, and its scale, as torchao has them.
TEST_CASE("number formats: what becomes of a block's largest number") {
  struct Row {
    const char* format;
    const char* rule;
    float amax, becomes;
  };
  const float most = std::numeric_limits<float>::max();
  const Row rows[] = {
      {"mxfp8", "floor", 1.9F, 1.75F},
      {"mxfp8", "ceil", 1.9F, 1.875F},
      {"mxfp8", "rceil", 1.9F, 1.875F},
      {"mxfp8", "even", 1.96875F, 2.0F},
      {"mxfp4", "floor", 7, 6},
      {"mxfp4", "rceil", 7, 8},
      {"mxfp8", "floor", most, 1.75F * 0x1p127F},
      {"mxfp8", "rceil", std::bit_cast<float>(0x45e00001U), 7168},  // one step above M * 2^4: the scale goes up
      {"mxint8", "floor", 1.9999F, 127 / 64.0F},
      {"mxfp8", "floor", 0x1p-126F, 0x1p-126F},
  };
  for (const auto& row : rows) {
    CAPTURE(row.format);
    CAPTURE(row.rule);
    CAPTURE(row.amax);
    auto format = tensor_format(row.format);
    format.rule = vernier::scale_rule_named(row.rule);
    auto x = torch::zeros({1, 32});
    x[0][3] = row.amax;
    CHECK(round_to(x, format, {1, 32})[0][3].item<float>() == row.becomes);
  }
  auto x = torch::zeros({2, 32});
  CHECK(round_to(x, tensor_format("nvfp4"), {1, 16}).eq(0).all().item<bool>());
  x[1][0] = NAN;
  x[1][1] = x[0][1] = 3;
  const auto y = round_to(x, tensor_format("mxfp8"), {1, 32});
  CHECK(y[1].isnan().all().item<bool>());
  CHECK(y[0][1].item<float>() == 3);
  auto infinite = torch::zeros({2, 32});
  infinite[0][0] = 1;
  infinite[0][1] = infinity;
  const auto kept = round_to(infinite, tensor_format("mxfp8"), {1, 32});
  CHECK(kept[0][0].item<float>() == 0);
  CHECK(kept[0][1].item<float>() == HUGE_VALF);
  CHECK(round_to(infinite + 1, tensor_format("nvfp4"), {1, 16}).isnan().all().item<bool>());
  // [1, -0.3] without a scale of the tensor: s = 0.171875, codes 7 and b.
  auto nvfp4 = tensor_format("nvfp4");
  nvfp4.tensor_scale = false;
  const auto small = round_to(torch::tensor({{1.0F, -0.3F}}), nvfp4, {1, 16});
  CHECK(small[0][0].item<float>() == 1.03125F);
  CHECK(small[0][1].item<float>() == -0.2578125F);
  // A scale that its format rounds to zero makes a block of zeros.
  auto tiny = torch::full({2, 16}, 1e-9F);
  tiny[0].fill_(1000);
  CHECK(round_to(tiny, tensor_format("nvfp4"), {1, 16})[1].eq(0).all().item<bool>());
}

TEST_CASE("number formats: the signal that is left of Gaussian numbers is what is published") {
  torch::manual_seed(5);
  const auto x = torch::randn({1024, 1024});
  const auto decibels = [&](const std::string& name, const char* rule, std::int64_t block) {
    auto format = tensor_format(name);
    if (format.has_block_scale && format.rule != vernier::ScaleRule::nearest)
      format.rule = vernier::scale_rule_named(rule);
    if (format.block == 0 && block < 0) format.block = -1;
    const auto y = round_to(x, format, format.block > 0 ? vernier::ScaleBlock{1, format.block} : vernier::per_tensor);
    return 10 * std::log10((x.square().sum() / (x - y).square().sum()).item<double>());
  };
  struct Row {
    const char* name;
    const char* rule;
    std::int64_t block;
    double decibels;
  };
  const Row rows[] = {
      {"bf16", "", 0, 55.6},        {"mxint8", "floor", 32, 41.7},     {"int8", "", -1, 39.3},
      {"e4m3", "", -1, 31.6},       {"mxfp8", "floor", 32, 30.7},      {"mxfp8", "rceil", 32, 31.5},
      {"mxfp6", "floor", 32, 30.9}, {"mxfp6_e3m2", "floor", 32, 25.4}, {"nvfp4", "", 16, 20.4},
      {"mxfp4", "floor", 32, 18.8},
  };
  for (const auto& row : rows) {
    CAPTURE(row.name);
    CAPTURE(row.rule);
    CHECK(decibels(row.name, row.rule, row.block) == doctest::Approx(row.decibels).epsilon(0.015));
  }
}

TEST_CASE("number formats: the numbers of the element are the rounded ones without their scales") {
  torch::manual_seed(6);
  const auto x = torch::randn({6, 64});
  for (const std::string name : {"mxfp4", "nvfp4", "mxint8", "e4m3", "bf16", "posit8_1"}) {
    CAPTURE(name);
    auto format = tensor_format(name);
    if (name == "e4m3") format.block = -1;
    const auto block = format.block > 0 ? vernier::ScaleBlock{1, format.block} : vernier::per_tensor;
    const vernier::Draw draw{vernier::Rounding::stochastic, 7};
    const auto numbers = vernier::element_numbers(x, format, block, draw), y = round_to(x, format, block, draw);
    for (std::int64_t i = 0; i < numbers.numel(); ++i) {
      const double number = numbers.view(-1)[i].item<float>();
      REQUIRE(format.element.round(number) == number);
    }
    const auto width = format.block > 0 ? format.block : 64;
    const auto scales = (y / numbers).view({-1, width});  // NaN for 0
    const auto first = scales.nan_to_num(0).amax(1, true).expand_as(scales);
    CHECK(at::isclose(scales, first, 1e-6, 0).logical_or(numbers.view({-1, width}).eq(0)).all().item<bool>());
  }
}

// P3109's second rule, by exact arithmetic: x lies at the fraction `part` / `parts` of a step of each format.
TEST_CASE("number formats: n random bits decide in every format, and with the probabilities that they give") {
  constexpr std::int64_t draws = 4096;
  for (const std::string name : {"posit8_1", "posit8_0", "posit16_2", "e5m0", "k8p1", "k5p1", "e8m0", "e4m3", "e2m1",
                                 "int8", "fixed8.4", "bf16", "k8p4"}) {
    const auto format = number_format(name);
    std::vector<double> numbers;
    for (const double number : numbers_of(format)) {
      if (number > 0 && number >= 1.0 / 16 && number <= 16) numbers.push_back(number);
    }
    REQUIRE(numbers.size() >= 3);
    for (const int bits : {1, 2, 5}) {
      const std::int64_t parts = std::int64_t{4} << bits;  // some fractions are between the rule's
      for (const std::size_t at : {std::size_t{0}, numbers.size() / 2, numbers.size() - 2}) {
        const double low = numbers[at], high = numbers[at + 1];
        for (std::int64_t part = 0; part < parts; ++part) {
          const double x = low + (high - low) * static_cast<double>(part) / static_cast<double>(parts);
          const std::int64_t whole = std::int64_t{2} << bits;
          std::int64_t ways = 0;
          for (std::int64_t r = 0; r < std::int64_t{1} << bits; ++r) {
            ways += part * whole / parts + 2 * r + 1 >= whole ? 1 : 0;
          }
          for (const double sign : {1.0, -1.0}) {
            if (sign < 0 && format.kind == NumberFormat::Kind::power_of_two) continue;
            const auto y = round_to(torch::full({draws}, sign * x, torch::kFloat32), unscaled(format),
                                    vernier::per_tensor, {Rounding::stochastic, 5, bits});
            const auto ups = y.eq(sign * high).sum().item<std::int64_t>();
            const double wanted = static_cast<double>(ways) / static_cast<double>(std::int64_t{1} << bits);
            const double spread = 6 * std::sqrt(wanted * (1 - wanted) * draws);
            INFO(name, " bits ", bits, " at ", part, " / ", parts, " of ", low, " to ", high);
            REQUIRE(ups + y.eq(sign * low).sum().item<std::int64_t>() == draws);
            REQUIRE(std::abs(static_cast<double>(ups) - wanted * draws) <= spread);
          }
        }
      }
    }
  }
}

TEST_CASE("number formats: one with the exponent of float64 has numbers up to float64's largest") {
  const auto format = number_format("e11m4");
  CHECK(format.largest() == std::ldexp(31, 1019));
  CHECK(format.round(1.03) == 1.0);
  CHECK(round_to(torch::full({1}, 3.3e38F), unscaled(format)).item<double>() == format.round(3.3e38F));
}

TEST_CASE("number formats: bad input ends in one line") {
  const std::pair<const char*, const char*> names[] = {
      {"e4m4m", "there is no number format"},
      {"e4n3", "did you mean \"e4m3\"?"},
      {"nvfp5", "did you mean \"nvfp4\"?"},
      {"e0m3", "its exponent has 1 to 11 bits"},
      {"e12m3", "its exponent has 1 to 11 bits"},
      {"e9m20", "2 to 24 are possible"},
      {"posit40_1", "2 to 16 are possible"},
      {"posit8_7", "es of a posit is 0 to 3"},
      {"k4p4", "K - P is 1 to 11"},
      {"int99", "2 to 16 are possible"},
      {"e1m", "there is no number format"},
  };
  for (const auto& [name, text] : names) {
    CAPTURE(name);
    const auto thrown = thrown_by([&, &name = name] { tensor_format(name); });
    CHECK(thrown.kind == 2);
    CHECK_MESSAGE(says(thrown.text, text), thrown.text);
  }
  const auto x = torch::ones({4});
  CHECK(says(thrown_by([&] { round_to(x, tensor_format("mxfp8"), {1, 32}); }).text, "need a matrix"));
  CHECK(says(thrown_by([&] { round_to(x.to(torch::kFloat64), tensor_format("e4m3")); }).text, "float32, bfloat16"));
  CHECK(says(thrown_by([&] {
               round_to(x, tensor_format("e4m3"), vernier::per_tensor, {Rounding::stochastic, 0, 24});
             }).text,
             "1 to 23 random bits"));
  CHECK(says(thrown_by([&] { number_format("e2m1").decode(16); }).text, "more than the 4 bits"));
}

}  // namespace number_format_test
