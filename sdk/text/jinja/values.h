// The values of Jinja's expressions, which are Python's.
#pragma once

#include <vernier/abi.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <variant>
#include <vector>

#include "files/json.h"

namespace vernier::jinja {

struct Value;
class Run;

// The arguments of a call: f(1, x=2).
struct Arguments {
  std::vector<Value> places;
  std::vector<std::pair<std::string, Value>> names;

  // The argument at a place or of a name; nullptr if it is not given.
  const Value* find(std::size_t place, std::string_view name) const;
};

struct Undefined {
  std::string name;  // the name that was looked up
};
struct None {};
using List = std::vector<Value>;
using Map = std::vector<std::pair<Value, Value>>;  // in the order of insertion
struct Space {                                     // namespace(), whose parts a template may set
  Map parts;
};
using Function = std::function<Value(Run&, const Arguments&)>;

// A list or a mapping that is complete, with how deep it is and how many values are in it. Values share it, so a short
// template can make one that would take years to write.
template <class Parts>
struct Whole {
  Parts parts;
  std::size_t depth, nodes;
};

struct Value {
  std::variant<Undefined, None, bool, std::int64_t, double, std::shared_ptr<const std::string>,
               std::shared_ptr<const Whole<List>>, std::shared_ptr<const Whole<Map>>, std::shared_ptr<Space>,
               std::shared_ptr<const Function>>
      data;

  Value() = default;
  template <class T>
  requires(std::is_same_v<T, Undefined> || std::is_same_v<T, None> || std::is_same_v<T, bool> ||
           std::is_same_v<T, std::int64_t> || std::is_same_v<T, double> || std::is_same_v<T, std::shared_ptr<Space>>)
      Value(T value)
      : data(std::move(value)) {}  // NOLINT: literals are values
  Value(std::string text) : data(std::make_shared<const std::string>(std::move(text))) {}
  Value(const char* text) : Value(std::string(text)) {}
  Value(int number) : data(std::int64_t{number}) {}
  // Both throw Error for one that is too deep or too large, and for one that holds a namespace.
  Value(List list);
  Value(Map map);
  Value(Function function) : data(std::make_shared<const Function>(std::move(function))) {}

  template <class T>
  bool is() const {
    return std::holds_alternative<T>(data);
  }
  const std::string* text() const { return part<std::string>(); }
  const List* list() const {
    const auto* whole = part<Whole<List>>();
    return whole == nullptr ? nullptr : &whole->parts;
  }
  const Map* map() const {
    const auto* whole = part<Whole<Map>>();
    return whole == nullptr ? nullptr : &whole->parts;
  }
  std::size_t depth() const;  // 0 for what is neither a list nor a mapping
  std::size_t nodes() const;  // the values in it, itself included; long texts count as several
  Space* space() const {
    const auto* held = std::get_if<std::shared_ptr<Space>>(&data);
    return held == nullptr ? nullptr : held->get();
  }
  const Function* function() const { return part<Function>(); }
  bool is_number() const { return is<std::int64_t>() || is<double>() || is<bool>(); }
  bool is_whole() const { return is<std::int64_t>() || is<bool>(); }
  std::int64_t whole() const;  // requires is_whole(); throws Error for others
  double real() const;         // requires is_number(); throws Error for others

 private:
  template <class T>
  const T* part() const {
    const auto* held = std::get_if<std::shared_ptr<const T>>(&data);
    return held == nullptr ? nullptr : held->get();
  }
};

Value value_of(const OrderedJson& json);
// json.dumps(value, ensure_ascii=False); indent below 0: in one line.
std::string json_of(const Value& value, std::int64_t indent = -1);

bool is_true(const Value& value);
bool are_equal(const Value& a, const Value& b);
bool is_less(const Value& a, const Value& b);  // throws Error for values without an order
std::string name_of_kind(const Value& value);  // "a list"
std::string str(const Value& value);           // Python's str(), which {{ value }} writes
std::string repr(const Value& value);
std::int64_t size_of(const Value& value);  // len(value), in characters; throws Error for values without one
List items_of(const Value& value);         // the items of a loop over it; throws Error for values without items
const Value* find(const Map& map, const Value& key);

// The characters of a text in UTF-8.
std::vector<std::string_view> characters_of(std::string_view text);
bool is_white(char32_t code);  // for Python's str.strip()
// The place at which a character begins, by its number; the size of the text if there is none.
std::size_t place_of(std::string_view text, std::int64_t number);
// Without white space or, if it is given, without these characters at its ends.
// Returns the first place at or behind `from` where the part stands in the text, or npos. The time is linear in their
// lengths.
std::size_t place_of(std::string_view part, std::string_view text, std::size_t from = 0);
VERNIER_API std::string stripped(std::string_view text, bool left, bool right, const std::string* characters = nullptr);

}  // namespace vernier::jinja
