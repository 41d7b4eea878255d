#include <vernier/error.h>
#include <vernier/float8.h>

#include <cstring>
#include <random>
#include <string>

#include "float8_reference.h"
#include "oracle.h"

namespace float8_test {

using vernier::Error;
using vernier::ScaleBlock;

namespace {

constexpr torch::ScalarType formats[] = {torch::kFloat8_e4m3fn, torch::kFloat8_e5m2};
constexpr double inf = HUGE_VAL;
const double not_a_number = std::numeric_limits<double>::quiet_NaN();

torch::Tensor codes_of(const torch::Tensor& values) {
  return values.contiguous().view(torch::kUInt8);
}

torch::Tensor cast(const torch::Tensor& x, torch::ScalarType format) {
  return vernier::float8_quantize(x, torch::ones({}), format).values;
}

// nan is nan whatever its code.
bool same_codes(const torch::Tensor& values, const torch::Tensor& codes) {
  const auto other = codes.view(values.scalar_type());
  const auto nans = values.to(torch::kFloat32).isnan().logical_and(other.to(torch::kFloat32).isnan());
  return codes_of(values).eq(codes).logical_or(nans).all().item<bool>();
}

// Numbers of every kind: any bits, ordinary ones, every number of the format, and what is at and around every tie.
torch::Tensor numbers(const Float8Reference& reference) {
  std::mt19937 random(5);
  std::normal_distribution<float> normal(0, 40);
  std::vector<float> all = {0.0F, -0.0F, HUGE_VALF, -HUGE_VALF, NAN,   -NAN,  1e30F, -1e30F,
                            448,  449,   464,       465,        57344, 61440, 65536};
  for (int i = 0; i < 800000; ++i) {
    const auto bits = static_cast<std::uint32_t>(random());
    float number = 0;
    std::memcpy(&number, &bits, sizeof number);
    all.push_back(number);
  }
  for (int i = 0; i < 200000; ++i) all.push_back(normal(random));
  for (int i = 0; i < 100000; ++i) all.push_back(std::ldexp(normal(random), -12));
  for (std::uint8_t code = 0; code < reference.largest_code; ++code) {
    const auto tie = static_cast<float>((reference.decode(code) + reference.decode(code + 1)) / 2);
    for (const float number : {tie, std::nextafter(tie, 0.0F), std::nextafter(tie, 1e9F)}) {
      all.push_back(number);
      all.push_back(-number);
    }
  }
  return torch::tensor(all, torch::kFloat32);
}

torch::Tensor random_matrix(std::int64_t rows, std::int64_t columns, std::uint64_t seed) {
  torch::manual_seed(seed);
  // Rows and columns of different sizes, so that it matters which of them share a scale.
  const auto factors = torch::randn({rows, 1}).mul(2).exp() * torch::randn({1, columns}).mul(2).exp();
  return torch::randn({rows, columns}) * factors;
}

}  // namespace

TEST_CASE("float8: all 256 codes are the numbers that the format defines") {
  for (const auto format : formats) {
    CAPTURE(format);
    const auto reference = Float8Reference::of(format);
    CHECK(vernier::float8_max(format) == reference.decode(reference.largest_code));
    const auto values = torch::arange(256, torch::kUInt8).view(format);
    const auto numbers = vernier::from_float8(values);
    for (int code = 0; code < 256; ++code) {
      CAPTURE(code);
      const double number = numbers[code].item<double>(), expected = reference.decode(static_cast<std::uint8_t>(code));
      if (std::isnan(expected)) {
        CHECK(std::isnan(number));
      } else {
        CHECK(number == expected);
        CHECK(std::signbit(number) == std::signbit(expected));
      }
    }
    const auto finite = numbers.isfinite().nonzero().view({-1});
    CHECK(torch::equal(codes_of(cast(numbers.index_select(0, finite), format)),
                       codes_of(values).index_select(0, finite)));
  }
}

TEST_CASE("float8: a cast takes the nearest number, ties to even, and saturates") {
  for (const auto format : formats) {
    CAPTURE(format);
    const auto reference = Float8Reference::of(format);
    const auto x = numbers(reference);
    REQUIRE(x.numel() > 1000000);
    const auto values = cast(x, format);
    REQUIRE((values.scalar_type() == format));
    const auto* number = x.const_data_ptr<float>();
    auto expected = torch::empty({x.numel()}, torch::kUInt8);
    for (std::int64_t i = 0; i < x.numel(); ++i) expected.data_ptr<std::uint8_t>()[i] = reference.encode(number[i]);
    CHECK(same_codes(values, expected));
    // The 16-bit dtypes are widened, not rounded on the way.
    for (const auto dtype : {torch::kBFloat16, torch::kFloat16}) {
      const auto narrow = x.to(dtype);
      CHECK(torch::equal(codes_of(cast(narrow.nan_to_num(0), format)),
                         codes_of(cast(narrow.to(torch::kFloat32).nan_to_num(0, inf, -inf), format))));
    }
  }
}

TEST_CASE("float8: casts are those of ml_dtypes") {
  const Oracle oracle("float8");
  for (const auto& [name, format] : {std::pair("e4m3", formats[0]), std::pair("e5m2", formats[1])}) {
    CAPTURE(name);
    CHECK(same_codes(cast(oracle["cast.numbers"], format), oracle[std::string("cast.") + name]));
  }
}

TEST_CASE("float8: infinity saturates and nan stays") {
  for (const auto format : formats) {
    const double largest = vernier::float8_max(format);
    const auto numbers = vernier::from_float8(cast(torch::tensor({inf, -inf, not_a_number}, torch::kFloat32), format));
    CHECK(numbers[0].item<double>() == largest);
    CHECK(numbers[1].item<double>() == -largest);
    CHECK(std::isnan(numbers[2].item<double>()));
  }
}

TEST_CASE("float8: another format is refused") {
  CHECK_THROWS_AS(vernier::float8_max(torch::kFloat8_e5m2fnuz), Error);
  CHECK_THROWS_WITH(cast(torch::ones({2}), torch::kHalf), "fp8 is Float8_e4m3fn or Float8_e5m2, not Half");
}

TEST_CASE("float8: a scale brings amax to the largest number") {
  for (const auto format : formats) {
    for (const double margin : {0.0, 1.0, 3.0}) {
      for (const bool power_of_two : {false, true}) {
        torch::manual_seed(7);
        const auto largest = torch::randn({5000}).mul(20).exp();
        const auto scale = vernier::float8_scale(largest, format, margin, power_of_two);
        for (std::int64_t i = 0; i < largest.numel(); ++i) {
          const double expected = reference_scale(largest[i].item<double>(), format, margin, power_of_two);
          REQUIRE(scale[i].item<double>() == expected);
        }
      }
    }
  }
}

TEST_CASE("float8: an amax of 0, inf or nan scales by 1, one that is too small by float32's largest") {
  const double most = std::numeric_limits<float>::max();
  const auto amax = torch::tensor({0.0, inf, not_a_number, 1e-38, 1e-45, 448.0}, torch::kFloat32);
  const auto scale = vernier::float8_scale(amax, formats[0]);
  CHECK(torch::equal(scale, torch::tensor({1.0, 1.0, 1.0, most, most, 1.0}, torch::kFloat32)));
  const auto power = vernier::float8_scale(amax, formats[0], 0, true);
  CHECK(torch::equal(power, torch::tensor({1.0, 1.0, 1.0, std::exp2(127), std::exp2(127), 1.0}, torch::kFloat32)));
  CHECK(vernier::float8_scale(torch::scalar_tensor(3.0), formats[0]).dim() == 0);
}

TEST_CASE("float8: amax is of each block, ragged ones too") {
  for (const auto& [rows, columns] :
       {std::pair(5, 7), std::pair(128, 256), std::pair(130, 257), std::pair(1, 300), std::pair(300, 1)}) {
    for (const auto block : {vernier::per_row, vernier::per_column, vernier::per_1x128, vernier::per_128x1,
                             vernier::per_128x128, ScaleBlock{3, 2}}) {
      CAPTURE(rows);
      CAPTURE(columns);
      const auto x = random_matrix(rows, columns, 3);
      const auto height = block.rows == 0 ? rows : block.rows, width = block.columns == 0 ? columns : block.columns;
      const auto largest = vernier::float8_amax(x, block);
      REQUIRE(largest.size(0) == (rows + height - 1) / height);
      REQUIRE(largest.size(1) == (columns + width - 1) / width);
      for (std::int64_t r = 0; r < largest.size(0); ++r) {
        for (std::int64_t c = 0; c < largest.size(1); ++c) {
          const auto part = x.slice(0, r * height, (r + 1) * height).slice(1, c * width, (c + 1) * width);
          CHECK(largest[r][c].item<float>() == part.abs().max().item<float>());
        }
      }
      CHECK(torch::equal(vernier::float8_amax(x.t(), {block.columns, block.rows}), largest.t()));
    }
  }
}

TEST_CASE("float8: amax of a tensor takes any shape and dtype, and shows a nan") {
  CHECK(vernier::float8_amax(torch::tensor({1.0, -3.0})).item<double>() == 3);
  CHECK(vernier::float8_amax(torch::full({2, 3, 4}, -2.5, torch::kBFloat16)).item<double>() == 2.5);
  CHECK((vernier::float8_amax(torch::ones({2}, torch::kHalf)).scalar_type() == torch::kFloat32));
  CHECK(vernier::float8_amax(torch::empty({0, 4})).item<double>() == 0);
  CHECK(torch::equal(vernier::float8_amax(torch::empty({0, 4}), vernier::per_column), torch::zeros({1, 4})));
  CHECK(std::isnan(vernier::float8_amax(torch::tensor({1.0, not_a_number, 2.0})).item<double>()));
  CHECK(std::isnan(
      vernier::float8_amax(torch::tensor({1.0, not_a_number}).view({1, 2}), vernier::per_row).item<double>()));
  CHECK(vernier::float8_amax(torch::tensor({1.0, -inf})).item<double>() == inf);
  CHECK_THROWS_WITH(vernier::float8_amax(torch::ones({3}), vernier::per_row),
                    "scales of blocks need a matrix, and this tensor is of shape [3]");
}

TEST_CASE("float8: quantised and dequantised is what the definition says, at every granularity") {
  std::uint64_t seed = 0;
  for (const auto format : formats) {
    for (const auto& [rows, columns] : {std::pair(6, 9), std::pair(130, 257), std::pair(256, 128)}) {
      for (const auto block : {vernier::per_tensor, vernier::per_row, vernier::per_column, vernier::per_1x128,
                               vernier::per_128x1, vernier::per_128x128}) {
        for (const bool power_of_two : {false, true}) {
          const auto x = random_matrix(rows, columns, ++seed);
          const auto scale = vernier::float8_scale(vernier::float8_amax(x, block), format, 0, power_of_two);
          const auto quantised = vernier::float8_quantize(x, scale, format, block);
          CHECK((quantised.values.scalar_type() == format));
          CHECK((quantised.values.sizes() == x.sizes()));
          const auto expected = quantized(Matrix(x), format, block, 0, power_of_two).tensor();
          const auto back = quantised.dequantize().to(torch::kFloat64);
          CHECK(((back - expected).abs() <= expected.abs() * (power_of_two ? 0 : 2e-7)).all().item<bool>());
          CHECK(torch::equal(quantised.t().dequantize(), quantised.dequantize().t()));
          // A transposed view, as weights may be, is quantised to the same.
          const auto view = x.t().contiguous().t();
          CHECK(torch::equal(codes_of(vernier::float8_quantize(view, scale, format, block).values),
                             codes_of(quantised.values)));
        }
      }
    }
  }
}

TEST_CASE("float8: nothing of it is recorded for a gradient") {
  const auto x = torch::randn({4, 4}).requires_grad_();
  const auto scale = vernier::float8_scale(vernier::float8_amax(x), formats[0]);
  CHECK_FALSE(scale.requires_grad());
  CHECK_FALSE(vernier::float8_quantize(x, scale, formats[0]).dequantize().requires_grad());
}

}  // namespace float8_test
