#include "used_codes.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <iterator>

namespace formats {

namespace {

// Numbers of a format of up to 16 bits differ in their first 24 bits.
std::vector<std::uint32_t> distinct(const torch::Tensor& numbers) {
  std::vector<std::uint64_t> marks(std::size_t{1} << 18);
  const auto* const values = numbers.const_data_ptr<float>();
  for (std::int64_t i = 0; i < numbers.numel(); ++i) {
    const auto first = std::bit_cast<std::uint32_t>(values[i]) >> 8;
    marks[first >> 6] |= std::uint64_t{1} << (first & 63);
  }
  std::vector<std::uint32_t> found;
  for (std::size_t word = 0; word < marks.size(); ++word) {
    for (auto left = marks[word]; left != 0; left &= left - 1) {
      found.push_back(static_cast<std::uint32_t>(word << 6) + static_cast<std::uint32_t>(std::countr_zero(left)));
    }
  }
  return found;
}

}  // namespace

void UsedCodes::add(const torch::Tensor& numbers) {
  const auto found = distinct(numbers.cpu());
  std::vector<std::uint32_t> all;
  std::ranges::set_union(seen_, found, std::back_inserter(all));
  seen_ = std::move(all);
}

double UsedCodes::share_of(const vernier::NumberFormat& format) const {
  const auto is_finite = [](std::uint32_t first) { return (first >> 15 & 255) != 255; };
  std::int64_t codes = 0;
  for (std::uint32_t code = 0; code < 1U << format.bits; ++code) codes += std::isfinite(format.decode(code)) ? 1 : 0;
  return static_cast<double>(std::ranges::count_if(seen_, is_finite)) / static_cast<double>(codes);
}

}  // namespace formats
