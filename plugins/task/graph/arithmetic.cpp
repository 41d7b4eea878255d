#include "arithmetic.h"

#include <vernier/error.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <unordered_map>

namespace graph {

namespace {

using c10::IValue;
using Arguments = std::vector<IValue>;

const IValue& at(const Arguments& all, std::size_t i) {
  if (i >= all.size() || !(all[i].isInt() || all[i].isDouble() || all[i].isBool())) {
    vernier::refuse("arithmetic on sizes got something else than numbers");
  }
  return all[i];
}

std::int64_t whole(const IValue& value) {
  return value.isBool() ? static_cast<std::int64_t>(value.toBool()) : value.toInt();
}
double real(const IValue& value) {
  return value.isDouble() ? value.toDouble() : static_cast<double>(whole(value));
}
bool are_whole(const Arguments& all) {
  return std::ranges::none_of(all, [](const IValue& value) { return value.isDouble(); });
}

std::int64_t nonzero(std::int64_t divisor) {
  return divisor != 0 ? divisor : (vernier::refuse("a size is divided by 0"), 0);
}

// Python rounds quotients down, and its remainder has the sign of the divisor.
std::int64_t floor_divide(std::int64_t a, std::int64_t b) {
  if (b == -1 && a == std::numeric_limits<std::int64_t>::min()) vernier::refuse("a size leaves 64 bits");
  const auto quotient = a / nonzero(b);
  return a % b != 0 && (a % b < 0) != (b < 0) ? quotient - 1 : quotient;
}

template <bool (*overflows)(std::int64_t, std::int64_t, std::int64_t*), class Real>
IValue exact(const Arguments& all, Real of_reals) {
  const auto &a = at(all, 0), &b = at(all, 1);
  if (!are_whole(all)) return of_reals(real(a), real(b));
  std::int64_t result = 0;
  if (overflows(whole(a), whole(b), &result)) vernier::refuse("a size leaves 64 bits");
  return result;
}

bool add(std::int64_t a, std::int64_t b, std::int64_t* sum) {
  return __builtin_add_overflow(a, b, sum);
}
bool subtract(std::int64_t a, std::int64_t b, std::int64_t* rest) {
  return __builtin_sub_overflow(a, b, rest);
}
bool multiply(std::int64_t a, std::int64_t b, std::int64_t* product) {
  return __builtin_mul_overflow(a, b, product);
}

IValue larger(const Arguments& all, bool wants_larger) {
  const auto &a = at(all, 0), &b = at(all, 1);
  return (real(a) < real(b)) == wants_larger ? b : a;
}

template <class Compare>
IValue compared(const Arguments& all, Compare compare) {
  return are_whole(all) ? compare(whole(at(all, 0)), whole(at(all, 1))) : compare(real(at(all, 0)), real(at(all, 1)));
}

const std::unordered_map<std::string, Arithmetic> table = {
    {"add", [](const Arguments& all) { return exact<add>(all, std::plus<>()); }},
    {"sub", [](const Arguments& all) { return exact<subtract>(all, std::minus<>()); }},
    {"mul", [](const Arguments& all) { return exact<multiply>(all, std::multiplies<>()); }},
    {"floordiv",
     [](const Arguments& all) -> IValue {
       if (!are_whole(all)) return std::floor(real(at(all, 0)) / real(at(all, 1)));
       return floor_divide(whole(at(all, 0)), whole(at(all, 1)));
     }},
    {"mod",
     [](const Arguments& all) -> IValue {
       const auto a = whole(at(all, 0)), b = whole(at(all, 1));
       return a - b * floor_divide(a, b);
     }},
    {"truediv", [](const Arguments& all) -> IValue { return real(at(all, 0)) / real(at(all, 1)); }},
    {"pow",
     [](const Arguments& all) -> IValue {
       const auto power = std::pow(real(at(all, 0)), real(at(all, 1)));
       if (!are_whole(all) || whole(at(all, 1)) < 0) return power;
       if (std::abs(power) >= 9007199254740992.0) vernier::refuse("a size leaves 53 bits");
       return static_cast<std::int64_t>(power);
     }},
    {"neg",
     [](const Arguments& all) -> IValue {
       return are_whole(all) ? IValue(-whole(at(all, 0))) : IValue(-real(at(all, 0)));
     }},
    {"eq", [](const Arguments& all) { return compared(all, [](auto a, auto b) { return IValue(a == b); }); }},
    {"ne", [](const Arguments& all) { return compared(all, [](auto a, auto b) { return IValue(a != b); }); }},
    {"lt", [](const Arguments& all) { return compared(all, [](auto a, auto b) { return IValue(a < b); }); }},
    {"le", [](const Arguments& all) { return compared(all, [](auto a, auto b) { return IValue(a <= b); }); }},
    {"gt", [](const Arguments& all) { return compared(all, [](auto a, auto b) { return IValue(a > b); }); }},
    {"ge", [](const Arguments& all) { return compared(all, [](auto a, auto b) { return IValue(a >= b); }); }},
    {"and_", [](const Arguments& all) -> IValue { return whole(at(all, 0)) != 0 && whole(at(all, 1)) != 0; }},
    {"or_", [](const Arguments& all) -> IValue { return whole(at(all, 0)) != 0 || whole(at(all, 1)) != 0; }},
    {"sym_not", [](const Arguments& all) -> IValue { return whole(at(all, 0)) == 0; }},
    {"sym_max", [](const Arguments& all) { return larger(all, true); }},
    {"sym_min", [](const Arguments& all) { return larger(all, false); }},
    {"sym_float", [](const Arguments& all) -> IValue { return real(at(all, 0)); }},
    {"sym_int", [](const Arguments& all) -> IValue { return static_cast<std::int64_t>(real(at(all, 0))); }},
    {"trunc", [](const Arguments& all) -> IValue { return static_cast<std::int64_t>(real(at(all, 0))); }},
    {"ceil", [](const Arguments& all) -> IValue { return static_cast<std::int64_t>(std::ceil(real(at(all, 0)))); }},
    {"floor", [](const Arguments& all) -> IValue { return static_cast<std::int64_t>(std::floor(real(at(all, 0)))); }},
    {"sqrt", [](const Arguments& all) -> IValue { return std::sqrt(real(at(all, 0))); }},
};

}  // namespace

Arithmetic arithmetic_of(const std::string& target) {
  for (const std::string prefix : {"_operator.", "math.", "torch.", "torch.sym_", "_sym_"}) {
    if (!target.starts_with(prefix)) continue;
    if (const auto found = table.find(target.substr(prefix.size())); found != table.end()) return found->second;
  }
  return nullptr;
}

}  // namespace graph
