// Which codes of a number format occur in tensors.
#pragma once

#include <vernier/lab/number_format.h>
#include <vernier/tensor.h>

#include <cstdint>
#include <vector>

namespace formats {

class UsedCodes {
 public:
  static bool can_count(const vernier::NumberFormat& format) { return format.bits <= 16; }

  // Adds contiguous float32 numbers of the format.
  void add(const torch::Tensor& numbers);
  // Returns the numbers that occurred as a share of the format's codes that are finite numbers.
  double share_of(const vernier::NumberFormat& format) const;

 private:
  std::vector<std::uint32_t> seen_;  // the first 24 bits of numbers, sorted
};

}  // namespace formats
