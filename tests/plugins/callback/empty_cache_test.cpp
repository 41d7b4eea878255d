#include <doctest/doctest.h>
#include <malloc.h>
#include <vernier/error.h>
#include <vernier/host.h>
#include <vernier/roles.h>

#include <cstring>
#include <memory>
#include <vector>

#include "plugin_library.h"

namespace empty_cache_test {

using vernier::Callback;
using vernier::Event;

namespace {

std::vector<std::string> lines;
std::vector<vernier::Level> levels;

struct Emptied {
  explicit Emptied(vernier::Table table) : plugin(make_plugin<Callback>("callback/empty_cache", std::move(table))) {
    lines.clear();
    levels.clear();
    vernier::set_log_sink([](vernier::Level level, const std::string&, const std::string& text) {
      lines.push_back(text);
      levels.push_back(level);
    });
    vernier::HostApi::attach(bus, *plugin, false);
  }
  ~Emptied() { vernier::set_log_sink(nullptr); }
  void end_step(std::int64_t step) {
    run.step = step;
    vernier::HostApi::emit(bus, Event::StepEnd, run);
  }
  std::unique_ptr<Callback> plugin;
  vernier::Bus bus;
  vernier::TrainerRun run;
};

// Pages that malloc keeps: freed, with something behind them that is not.
struct Kept {
  Kept() {
    constexpr std::size_t size = 64 << 10;  // less than what malloc maps on its own
    std::vector<std::unique_ptr<char[]>> blocks;
    for (int i = 0; i < 1024; ++i) {
      blocks.push_back(std::make_unique_for_overwrite<char[]>(size));
      std::memset(blocks.back().get(), 1, size);
    }
    behind = std::move(blocks.back());
  }
  std::unique_ptr<char[]> behind;
};

[[maybe_unused]] std::int64_t megabytes_in(const std::string& line) {
  return std::stoll(line.substr(line.find("gave ") + 5));
}

vernier::Table options(std::int64_t every, double above = 0) {
  return {{"every", {every, "test.toml:2"}}, {"above", {above, "test.toml:3"}}};
}

}  // namespace

#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)  // they have a malloc of their own
TEST_CASE(
    "empty_cache: what malloc keeps goes back, every so many steps, and is logged the first time and at the end") {
  Emptied emptied(options(3));
  const Kept kept;
  emptied.end_step(1);
  emptied.end_step(2);
  CHECK(lines.empty());
  emptied.end_step(3);
  REQUIRE(lines.size() == 1);
  CHECK(lines[0].starts_with("step 3: gave "));
  CHECK(megabytes_in(lines[0]) >= 50);
  CHECK(megabytes_in(lines[0]) <= 200);
  emptied.end_step(6);
  CHECK(megabytes_in(lines.at(1)) < 10);  // nothing is left
  vernier::HostApi::emit(emptied.bus, Event::RunEnd, emptied.run);
  CHECK(megabytes_in(lines.at(2)) >= 50);
  CHECK(lines[2].ends_with(" MB back, 2 times"));
  CHECK((levels == std::vector{vernier::Level::info, vernier::Level::debug, vernier::Level::info}));
}

TEST_CASE("empty_cache: only where more than a share is unused") {
  const Kept kept;
  const auto heap = ::mallinfo2();
  const double unused = static_cast<double>(heap.fordblks) / static_cast<double>(heap.arena + heap.hblkhd);
  CHECK(unused > 0.01);
  CHECK(unused < 0.98);
  Emptied above(options(1, unused + 0.01));
  above.end_step(1);
  CHECK(lines.empty());
  Emptied below(options(1, unused - 0.01));
  below.end_step(1);
  CHECK(lines.size() == 1);
}
#endif

TEST_CASE("empty_cache: what it cannot do is refused") {
  CHECK_THROWS_AS(make_plugin<Callback>("callback/empty_cache", options(0)), vernier::Error);
  CHECK_THROWS_AS(make_plugin<Callback>("callback/empty_cache", options(1, 1.5)), vernier::Error);
}

}  // namespace empty_cache_test
