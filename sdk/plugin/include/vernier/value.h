// TOML values with their places, and the ranges that numbers are checked against.
#pragma once

#include <cstdint>
#include <limits>
#include <map>
#include <string>
#include <variant>
#include <vector>

namespace vernier {

// A TOML value and its place, "run.toml:12" or "--set run.steps". Built by the host.
struct Value;
using Array = std::vector<Value>;
using Table = std::map<std::string, Value>;
struct Value {
  std::variant<bool, std::int64_t, double, std::string, Array, Table> data;
  std::string where;
};

// The numbers that a key accepts; for lists, each element. Both ends are included.
struct Range {
  double min = -std::numeric_limits<double>::infinity();
  double max = std::numeric_limits<double>::infinity();
  bool above = false;  // true: min itself is refused
};
inline Range at_least(double min) {
  return {.min = min};
}
inline Range above(double min) {
  return {.min = min, .above = true};
}
inline Range between(double min, double max) {
  return {.min = min, .max = max};
}

}  // namespace vernier
