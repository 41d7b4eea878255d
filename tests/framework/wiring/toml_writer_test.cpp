// The output of vernier config: TOML that reads back the same, with the place of each value.
#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <random>

#include "common/config/config.h"
#include "table_text.h"
#include "temporary_folder.h"
#include "wiring/wiring.h"

namespace toml_writer_test {

using vernier::Array;
using vernier::Table;
using vernier::Value;

namespace {

bool same(const Value& a, const Value& b);

bool same(const Table& a, const Table& b) {
  return std::ranges::equal(a, b, [](const auto& left, const auto& right) {
    return left.first == right.first && same(left.second, right.second);
  });
}

// Bit by bit, but for NaN, whose bits TOML does not keep.
bool same(const Value& a, const Value& b) {
  if (a.data.index() != b.data.index()) return false;
  if (const auto* table = std::get_if<Table>(&a.data)) return same(*table, std::get<Table>(b.data));
  if (const auto* list = std::get_if<Array>(&a.data)) {
    return std::ranges::equal(*list, std::get<Array>(b.data),
                              [](const Value& left, const Value& right) { return same(left, right); });
  }
  if (const auto* real = std::get_if<double>(&a.data)) {
    const double other = std::get<double>(b.data);
    return std::isnan(*real) ? std::isnan(other) : std::memcmp(real, &other, sizeof other) == 0;
  }
  return show(a) == show(b);
}

// Random tables of all types, with keys and texts that are easy to write wrongly.
class Tables {
 public:
  explicit Tables(unsigned seed) : random_(seed) {}

  Table table(int depth) {
    Table made;
    for (auto i = below(5); i > 0; --i) made[word()] = value(depth + 1);
    return made;
  }

 private:
  Value value(int depth) {
    const std::string where = "a file\n:1";  // a place must not end its comment
    switch (below(depth < 5 ? 8 : 4)) {
      case 0:
        return {below(2) == 0, where};
      case 1:
        return {integer(), where};
      case 2:
        return {real(), where};
      case 3:
        return {word() + word(), where};
      case 4:
        return {table(depth), where};
      case 5: {
        Array list;
        for (auto i = below(4); i > 0; --i) list.push_back({table(depth), where});
        return {list, where};
      }
      default: {
        Array list;
        for (auto i = below(6); i > 0; --i) list.push_back(value(depth + below(5)));
        return {list, where};
      }
    }
  }
  std::int64_t integer() {
    constexpr std::int64_t some[] = {0, -1, 1, 255, std::int64_t{1} << 53, INT64_MAX, INT64_MIN};
    return some[below(std::size(some))];
  }
  double real() {
    if (below(3) > 0) {
      double any = 0;
      const auto bits = (static_cast<std::uint64_t>(random_()) << 32) | random_();
      std::memcpy(&any, &bits, sizeof any);
      return any;
    }
    constexpr double some[] = {0.0, -0.0, 1.0, 0.1, 1e22, 5e-324, HUGE_VAL, -HUGE_VAL};
    return some[below(std::size(some))];
  }
  std::string word() {
    constexpr const char* some[] = {"a",
                                    "b_c",
                                    "4",
                                    "a.b",
                                    "with space",
                                    "\"",
                                    "'",
                                    "\\",
                                    "",
                                    "${a}",
                                    "$${b",
                                    "#",
                                    "new\nline",
                                    "\t",
                                    "é",
                                    "]]",
                                    "\x01",
                                    "= 0",
                                    "nan",
                                    "'''",
                                    "\"\"\"",
                                    "use",
                                    "\xf0\x9f\x98\x80",
                                    "\r\n",
                                    "\x7f"};
    return some[below(std::size(some))];
  }
  std::size_t below(std::size_t end) { return random_() % end; }
  std::mt19937 random_;
};

}  // namespace

TEST_CASE("toml writer: each value has its place behind it") {
  const TemporaryFolder folder;
  const auto first = folder.write("a.toml", "[run]\nsteps = 1\nseed = 2\n[task]\nuse = 'mlp'\nhidden = [1,\n2]\n");
  const auto second = folder.write(
      "b.toml", "[run]\nseed = 3\n[[callback]]\nuse = 'switch'\n[callback.to]\nprecision = {use = '$${x}'}\n");
  CHECK(vernier::to_toml(vernier::load_config({first, second}, {"run.name=x", "other=true"}), /*with_places=*/true) ==
        "other = true  # --set other\n"
        "\n[[callback]]\n"
        "use = \"switch\"  # " +
            second +
            ":4\n"
            "\n[callback.to]\n"
            "\n[callback.to.precision]\n"
            "use = \"$${x}\"  # " +
            second +
            ":6\n"
            "\n[run]\n"
            "name = \"x\"  # --set run.name\n"
            "seed = 3  # " +
            second +
            ":2\n"
            "steps = 1  # " +
            first +
            ":2\n"
            "\n[task]\n"
            "hidden = [1, 2]  # " +
            first +
            ":6\n"
            "use = \"mlp\"  # " +
            first + ":5\n");
  CHECK(vernier::to_toml({}, /*with_places=*/true).empty());
}

TEST_CASE("toml writer: any table reads back the same, with places and without") {
  for (unsigned seed = 0; seed < 3000; ++seed) {
    const TemporaryFolder folder;
    const auto table = Tables(seed).table(0);
    const auto with_places = vernier::to_toml(table, /*with_places=*/true), plain = vernier::to_toml(table);
    CAPTURE(seed);
    CAPTURE(with_places);
    REQUIRE(same(vernier::load_config({folder.write("places.toml", with_places)}, {}), table));
    REQUIRE(same(vernier::parse_toml(plain, "here"), table));
  }
}

}  // namespace toml_writer_test
