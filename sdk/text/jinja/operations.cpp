#include "operations.h"

#include <vernier/error.h>

#include <algorithm>
#include <cmath>
#include <ctime>

#include "run.h"
#include "text/unicode/unicode.h"

namespace vernier::jinja {

namespace {

constexpr std::int64_t longest_range = 1'000'000;

Value computed_whole(const std::string& sign, std::int64_t a, std::int64_t b) {
  std::int64_t result = 0;
  bool is_over = false;
  if (sign == "+") is_over = __builtin_add_overflow(a, b, &result);
  if (sign == "-") is_over = __builtin_sub_overflow(a, b, &result);
  if (sign == "*") is_over = __builtin_mul_overflow(a, b, &result);
  if (is_over) refuse("a number is too large");
  if (sign == "//" || sign == "%") {
    if (b == 0) refuse("a division by 0");
    if (b == -1) return sign == "%" ? Value(0) : computed_whole("-", 0, a);
    const bool is_between = a % b != 0 && (a < 0) != (b < 0);
    if (sign == "//") return is_between ? a / b - 1 : a / b;
    return is_between ? a % b + b : a % b;
  }
  return result;
}

Value computed_real(const std::string& sign, double a, double b) {
  if (sign == "+") return a + b;
  if (sign == "-") return a - b;
  if (sign == "*") return a * b;
  if (sign == "**") return std::pow(a, b);
  if (b == 0) refuse("a division by 0");
  if (sign == "/") return a / b;
  const auto floor = std::floor(a / b);
  return sign == "//" ? floor : a - floor * b;
}

std::string repeated(const std::string& text, std::int64_t times) {
  std::string result;
  if (text.empty()) return result;
  for (std::int64_t i = 0; i < times; ++i) Run::require_small((result += text).size());
  return result;
}

// The place in a list of `size` parts, from its end if it is negative; or -1.
std::int64_t place_in(std::int64_t size, std::int64_t index) {
  if (index < 0) index += size;
  return index < 0 || index >= size ? -1 : index;
}

Value range(const Arguments& given) {
  const auto& places = given.places;
  if (places.empty() || places.size() > 3) refuse("range() takes one to three numbers");
  const auto first = places.size() > 1 ? places[0].whole() : 0;
  const auto last = places.size() > 1 ? places[1].whole() : places[0].whole();
  const auto step = places.size() > 2 ? places[2].whole() : 1;
  if (step == 0) refuse("range() has a step of 0");
  List list;
  for (auto i = first; step > 0 ? i < last : i > last;) {
    if (std::ssize(list) == longest_range) refuse("range() is too long");
    list.emplace_back(i);
    if (__builtin_add_overflow(i, step, &i)) break;
  }
  return list;
}

// Writes the local time, as in transformers.
Value time_now(const Arguments& given) {
  const auto* format = given.find(0, "format");
  if (format == nullptr || format->text() == nullptr) refuse("strftime_now() takes a text");
  const auto now = std::time(nullptr);
  std::tm parts{};
  ::localtime_r(&now, &parts);
  char text[512] = "";
  std::strftime(text, sizeof text, format->text()->c_str(), &parts);
  return std::string(text);
}

Map entries_of(const Arguments& given) {
  Map map;
  for (const auto& one : given.places) {
    if (one.map() == nullptr || given.places.size() > 1) refuse("dict() and namespace() take names, or one mapping");
    map = *one.map();
  }
  for (const auto& [name, value] : given.names) map.emplace_back(Value(name), value);
  return map;
}

}  // namespace

Value attribute_of(const Value& value, const std::string& name) {
  if (value.is<Undefined>())
    refuse("'" + std::get<Undefined>(value.data).name + "' is undefined, and has no '" + name + "'");
  const Map* map = value.space() != nullptr ? &value.space()->parts : value.map();
  const auto* found = map == nullptr ? nullptr : find(*map, Value(name));
  return found == nullptr ? Value(Undefined{name}) : *found;
}

Value item_of(const Value& value, const Value& key) {
  if (value.list() == nullptr && value.text() == nullptr) {
    if (value.map() == nullptr) return attribute_of(value, str(key));
    const auto* found = find(*value.map(), key);
    return found == nullptr ? Value(Undefined{str(key)}) : *found;
  }
  if (!key.is_whole()) return Undefined{str(key)};
  if (const auto* list = value.list()) {
    const auto place = place_in(std::ssize(*list), key.whole());
    return place < 0 ? Value(Undefined{str(key)}) : (*list)[static_cast<std::size_t>(place)];
  }
  const auto& text = *value.text();
  const auto place = place_in(key.whole() < 0 ? size_of(value) : std::ssize(text), key.whole());
  const auto at = place < 0 ? text.size() : place_of(text, place);
  return at == text.size() ? Value(Undefined{str(key)}) : Value(text.substr(at, character_at(text, at).size));
}

Value slice_of(const Value& value, const Value& first, const Value& last, const Value& step) {
  if (value.is<Undefined>()) return attribute_of(value, "slice");
  if (value.list() == nullptr && value.text() == nullptr) refuse(name_of_kind(value) + " cannot be cut by [:]");
  const auto size = size_of(value);
  const auto by = step.is<None>() ? 1 : std::clamp(step.whole(), -size - 1, size + 1);
  if (by == 0) refuse("a slice has a step of 0");
  const auto bound = [&](const Value& given, std::int64_t fallback) {
    if (given.is<None>()) return fallback;
    const auto index = given.whole() < 0 ? given.whole() + size : given.whole();
    return by > 0 ? std::clamp<std::int64_t>(index, 0, size) : std::clamp<std::int64_t>(index, -1, size - 1);
  };
  const auto begin = bound(first, by > 0 ? 0 : size - 1), end = bound(last, by > 0 ? size : -1);
  if (value.text() != nullptr && by == 1) {
    const auto from = place_of(*value.text(), begin), to = place_of(*value.text(), end);
    return value.text()->substr(from, std::max(from, to) - from);
  }
  const auto items = items_of(value);
  List part;
  for (auto i = begin; by > 0 ? i < end : i > end; i += by) part.push_back(items[static_cast<std::size_t>(i)]);
  if (value.list() != nullptr) return part;
  std::string text;
  for (const auto& one : part) text += *one.text();
  return text;
}

bool equal(Run& run, const Value& a, const Value& b) {
  run.step();
  run.walk_all(a.nodes() < b.nodes() ? a : b);
  return are_equal(a, b);
}

bool contains(Run& run, const Value& whole, const Value& part) {
  run.walk(whole);
  if (const auto* text = whole.text()) {
    if (part.text() == nullptr) refuse("a text cannot contain " + name_of_kind(part));
    return place_of(*part.text(), *text) != std::string::npos;
  }
  if (const auto* map = whole.map()) return find(*map, part) != nullptr;
  if (const auto* list = whole.list()) {
    return std::ranges::any_of(*list, [&](const Value& item) { return equal(run, item, part); });
  }
  if (!whole.is<Undefined>()) refuse("'in' needs a list, and this is " + name_of_kind(whole));
  return false;
}

Value computed(const std::string& sign, const Value& a, const Value& b) {
  if (sign == "~") {
    auto text = str(a) + str(b);
    Run::require_small(text.size());
    return text;
  }
  if (a.is_whole() && b.is_whole() && sign != "/" && sign != "**") return computed_whole(sign, a.whole(), b.whole());
  if (a.is_number() && b.is_number()) {
    const auto result = computed_real(sign, a.real(), b.real());
    return sign == "**" && a.is_whole() && b.is_whole() && b.whole() >= 0 && std::abs(result.real()) < 1e15
               ? Value(static_cast<std::int64_t>(result.real()))
               : result;
  }
  if (sign == "+" && a.text() != nullptr && b.text() != nullptr) return computed("~", a, b);
  if (sign == "+" && a.list() != nullptr && b.list() != nullptr) {
    auto list = *a.list();
    list.insert(list.end(), b.list()->begin(), b.list()->end());
    Run::require_small(list.size());
    return list;
  }
  if (sign == "*" && a.text() != nullptr && b.is_whole()) return repeated(*a.text(), b.whole());
  if (sign == "*" && b.text() != nullptr && a.is_whole()) return repeated(*b.text(), a.whole());
  refuse("'" + sign + "' does not take " + name_of_kind(a) + " and " + name_of_kind(b));
}

Value called(Run& run, const Value& function, const Arguments& arguments) {
  if (function.function() == nullptr) refuse(name_of_kind(function) + " cannot be called");
  return (*function.function())(run, arguments);
}

std::map<std::string, Value> global_functions() {
  const auto of = [](auto answer) {
    return Function([answer](Run&, const Arguments& given) { return answer(given); });
  };
  return {{"range", of(range)},
          {"strftime_now", of(time_now)},
          {"dict", of([](const Arguments& given) { return Value(entries_of(given)); })},
          {"namespace", of([](const Arguments& given) {
             auto space = std::make_shared<Space>();
             space->parts = entries_of(given);
             static_cast<void>(Value(space->parts));  // refuses a namespace in it
             return Value(space);
           })},
          {"raise_exception", of([](const Arguments& given) -> Value {
             refuse("the template says: " + (given.places.empty() ? std::string() : str(given.places[0])));
           })}};
}

}  // namespace vernier::jinja
