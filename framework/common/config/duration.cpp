#include "duration.h"

#include <array>
#include <charconv>
#include <utility>

namespace vernier {

std::optional<std::chrono::seconds> duration_in(const std::string& text) {
  constexpr std::array<std::pair<char, std::int64_t>, 4> units = {{{'d', 86400}, {'h', 3600}, {'m', 60}, {'s', 1}}};
  constexpr std::int64_t most = 10LL * 366 * 86400;
  std::int64_t all = 0;
  const char* next = text.data();
  const char* const end = next + text.size();
  for (const auto& [unit, seconds] : units) {
    std::int64_t number = 0;
    const auto [after, error] = std::from_chars(next, end, number);
    if (error != std::errc() || after == end || *after != unit) continue;
    if (number < 0 || number > most / seconds) return std::nullopt;
    all += number * seconds;
    next = after + 1;
  }
  if (next != end || all < 1 || all > most) return std::nullopt;
  return std::chrono::seconds(all);
}

}  // namespace vernier
