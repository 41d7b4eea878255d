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

  // Numbers from 0 on are twice themselves in the text, those below it -2 n - 1.
  std::int32_t next_signed() {
    const auto number = static_cast<std::int32_t>(next());
    return number % 2 == 0 ? number / 2 : -(number + 1) / 2;
  }

 private:
  std::string_view left_;
};

}  // namespace vernier
