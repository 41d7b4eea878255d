// Numbers that unicode_tables.py packed into text.
#pragma once

#include <cstdint>
#include <string_view>

namespace vernier {

// Digits of base 32 from '0' on, the highest first; every digit of a number but the last is 32 higher.
class PackedNumbers {
 public:
  explicit PackedNumbers(std::string_view text) : left_(text) {}

  bool done() const { return left_.empty(); }

  std::uint32_t next() {
    std::uint32_t number = 0;
    for (;;) {
      const auto digit = static_cast<std::uint32_t>(left_.front() - '0');
      left_.remove_prefix(1);
      number = number * 32 + digit % 32;
      if (digit < 32) return number;
    }
  }

 private:
  std::string_view left_;
};

}  // namespace vernier
