#include "common/config/duration.h"

#include <doctest/doctest.h>

namespace duration_test {

TEST_CASE("duration: what people write, and what is none") {
  const std::pair<const char*, std::int64_t> good[] = {
      {"45s", 45}, {"90m", 5400}, {"2h30m", 9000},        {"1d", 86400},
      {"1s", 1},   {"0h1s", 1},   {"1d12h5m10s", 129910}, {"3650d", 315360000}};
  for (const auto& [text, seconds] : good) {
    CAPTURE(text);
    const auto duration = vernier::duration_in(text);
    REQUIRE(duration);
    CHECK(duration->count() == seconds);
  }
  for (const char* text : {"", "5", "h", "30m2h", "2h2h", "-5m", "+5m", "1.5h", " 5m", "5m ", "5 m", "5min", "0s",
                           "99999999999999999999s", "9223372036854775807m", "4000d"}) {
    CAPTURE(text);
    CHECK_FALSE(vernier::duration_in(text));
  }
}

}  // namespace duration_test
