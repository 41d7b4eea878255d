#include "values.h"

#include <vernier/error.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <set>

#include "run.h"
#include "text/unicode/unicode.h"

namespace vernier::jinja {

namespace {

constexpr std::size_t deepest_value = 100, most_nodes = 5'000'000, bytes_of_node = 16;
constexpr std::size_t longest_of_characters = 1'000'000;  // bytes of a text that becomes a list

template <class Parts>
std::shared_ptr<const Whole<Parts>> measured(Parts parts) {
  std::size_t depth = 0, nodes = 1;
  const auto count = [&](const Value& value) {
    if (value.space() != nullptr) refuse("a namespace cannot be a part of a list, a mapping or a namespace");
    depth = std::max(depth, value.depth());
    nodes += value.nodes();
  };
  for (const auto& part : parts) {
    if constexpr (std::is_same_v<Parts, Map>) {
      count(part.first);
      count(part.second);
    } else {
      count(part);
    }
  }
  if (++depth > deepest_value) refuse("the template makes a value that is nested too deeply");
  if (nodes > most_nodes) refuse("the template makes too large a value");
  return std::make_shared<const Whole<Parts>>(std::move(parts), depth, nodes);
}

// Returns Python's repr() of a float.
std::string real_text(double value) {
  if (std::isnan(value)) return "nan";
  if (std::isinf(value)) return value > 0 ? "inf" : "-inf";
  char text[32];
  const bool is_plain = value == 0 || (std::abs(value) >= 1e-4 && std::abs(value) < 1e16);
  const auto format = is_plain ? std::chars_format::fixed : std::chars_format::scientific;
  std::string result(text, std::to_chars(text, text + sizeof text, value, format).ptr);
  if (is_plain && result.find('.') == std::string::npos) result += ".0";
  return result;
}

// True for characters that Python's repr() escapes: those without a glyph.
bool is_hidden(char32_t code) {
  static const auto ranges = [] {
    auto all = ranges_of("C").value_or(CodeRanges());
    const auto separators = ranges_of("Z").value_or(CodeRanges());
    all.insert(all.end(), separators.begin(), separators.end());
    std::ranges::sort(all);
    return all;
  }();
  const auto behind = std::ranges::upper_bound(ranges, code, {}, [](const auto& range) { return range.first; });
  return behind != ranges.begin() && code <= std::prev(behind)->second;
}

std::string escaped(char32_t code) {
  char text[16];
  const auto number = static_cast<unsigned>(code);
  std::snprintf(text, sizeof text, number < 0x100 ? "\\x%02x" : number < 0x10000 ? "\\u%04x" : "\\U%08x", number);
  return text;
}

// A text as Python's repr() has it.
std::string quoted_text(const std::string& text) {
  const char quote = text.find('\'') != std::string::npos && text.find('"') == std::string::npos ? '"' : '\'';
  std::string result(1, quote);
  for (const auto character : characters_of(text)) {
    const char c = character[0];
    const auto code = character_at(character, 0).code;
    if (c == '\\' || c == quote) {
      result += std::string{'\\', c};
    } else if (c == '\n' || c == '\r' || c == '\t') {
      result += c == '\n' ? "\\n" : c == '\r' ? "\\r" : "\\t";
    } else if (code < 0x20 || (code >= 0x7F && is_hidden(code))) {
      result += escaped(code);
    } else {
      result += character;
    }
  }
  return result + quote;
}

template <class Items, class Write>
std::string joined(const Items& items, const char* open, const char* close, const Write& write) {
  std::string result = open;
  for (const auto& item : items) {
    if (result.size() > 1) result += ", ";
    Run::require_small((result += write(item)).size());
  }
  return result + close;
}

OrderedJson json_value(const Value& value) {
  if (value.is<None>()) return nullptr;
  if (value.is<bool>()) return std::get<bool>(value.data);
  if (value.is<std::int64_t>()) return value.whole();
  if (value.is<double>()) return value.real();
  if (const auto* text = value.text()) return *text;
  if (const auto* list = value.list()) {
    auto json = OrderedJson::array();
    for (const auto& item : *list) json.push_back(json_value(item));
    return json;
  }
  if (const auto* map = value.map()) {
    auto json = OrderedJson::object();
    for (const auto& [key, item] : *map) json[str(key)] = json_value(item);
    return json;
  }
  refuse("tojson takes no value that is " + name_of_kind(value));
}

// Python's separators: ", " and ": ", but for "," where lines are broken.
void write_json(const OrderedJson& json, std::int64_t indent, std::int64_t level, std::string& out) {
  if (!json.is_structured() || json.empty()) {
    out += json.is_number_float() ? real_text(json.get<double>()) : json_text(json);
    return;
  }
  const auto line = [&](std::int64_t levels) {
    if (indent >= 0) out += "\n" + std::string(static_cast<std::size_t>(indent * levels), ' ');
  };
  out += json.is_array() ? '[' : '{';
  bool is_first = true;
  for (const auto& [key, item] : json.items()) {
    if (!is_first) out += indent >= 0 ? "," : ", ";
    is_first = false;
    line(level + 1);
    if (json.is_object()) out += json_text(OrderedJson(key)) + ": ";
    write_json(item, indent, level + 1, out);
    Run::require_small(out.size());
  }
  line(level);
  out += json.is_array() ? ']' : '}';
}

}  // namespace

const Value* Arguments::find(std::size_t place, std::string_view name) const {
  if (place < places.size()) return &places[place];
  const auto found = std::ranges::find_if(names, [&](const auto& each) { return each.first == name; });
  return found == names.end() ? nullptr : &found->second;
}

Value::Value(List list) : data(measured(std::move(list))) {}
Value::Value(Map map) : data(measured(std::move(map))) {}

std::size_t Value::depth() const {
  if (const auto* list = part<Whole<List>>()) return list->depth;
  const auto* map = part<Whole<Map>>();
  return map == nullptr ? 0 : map->depth;
}

std::size_t Value::nodes() const {
  if (const auto* list = part<Whole<List>>()) return list->nodes;
  if (const auto* map = part<Whole<Map>>()) return map->nodes;
  return 1 + (text() == nullptr ? 0 : text()->size() / bytes_of_node);
}

std::int64_t Value::whole() const {
  if (is<bool>()) return std::get<bool>(data) ? 1 : 0;
  if (is<std::int64_t>()) return std::get<std::int64_t>(data);
  refuse("a whole number is needed, and this is " + name_of_kind(*this));
}

double Value::real() const {
  if (is<double>()) return std::get<double>(data);
  if (is_whole()) return static_cast<double>(whole());
  refuse("a number is needed, and this is " + name_of_kind(*this));
}

Value value_of(const OrderedJson& json) {
  if (json.is_null()) return None();
  if (json.is_boolean()) return json.get<bool>();
  if (json.is_number_unsigned() && json.get<std::uint64_t>() > INT64_MAX) return json.get<double>();
  if (json.is_number_integer()) return json.get<std::int64_t>();
  if (json.is_number()) return json.get<double>();
  if (json.is_string()) return json.get<std::string>();
  if (json.is_array()) {
    List list;
    for (const auto& item : json) list.push_back(value_of(item));
    return list;
  }
  Map map;
  for (const auto& [key, item] : json.items()) map.emplace_back(Value(key), value_of(item));
  return map;
}

std::string json_of(const Value& value, std::int64_t indent) {
  std::string text;
  write_json(json_value(value), indent, 0, text);
  return text;
}

bool is_true(const Value& value) {
  if (value.is<Undefined>() || value.is<None>()) return false;
  if (value.is_number()) return value.real() != 0;
  if (const auto* text = value.text()) return !text->empty();
  if (const auto* list = value.list()) return !list->empty();
  if (const auto* map = value.map()) return !map->empty();
  return true;
}

bool are_equal(const Value& a, const Value& b) {
  if (a.is_whole() && b.is_whole()) return a.whole() == b.whole();
  if (a.is_number() && b.is_number()) return a.real() == b.real();
  if (a.data.index() != b.data.index()) return false;
  if (a.text() != nullptr) return *a.text() == *b.text();
  if (a.list() != nullptr) return std::ranges::equal(*a.list(), *b.list(), are_equal);
  if (a.map() != nullptr) {
    return a.map()->size() == b.map()->size() && std::ranges::all_of(*a.map(), [&](const auto& entry) {
             const auto* other = find(*b.map(), entry.first);
             return other != nullptr && are_equal(entry.second, *other);
           });
  }
  if (a.space() != nullptr) return a.space() == b.space();
  return a.function() == b.function();
}

bool is_less(const Value& a, const Value& b) {
  if (a.is_whole() && b.is_whole()) return a.whole() < b.whole();
  if (a.is_number() && b.is_number()) return a.real() < b.real();
  if (a.text() != nullptr && b.text() != nullptr) return *a.text() < *b.text();
  refuse(name_of_kind(a) + " and " + name_of_kind(b) + " have no order");
}

std::string name_of_kind(const Value& value) {
  if (value.is<Undefined>()) return "undefined ('" + std::get<Undefined>(value.data).name + "')";
  constexpr const char* names[] = {"",       "none",   "true or false", "a whole number", "a number",
                                   "a text", "a list", "a mapping",     "a namespace",    "a function"};
  return names[value.data.index()];
}

std::string repr(const Value& value) {
  if (const auto* text = value.text()) return quoted_text(*text);
  return str(value);
}

std::string str(const Value& value) {
  if (value.is<Undefined>()) return "";
  if (value.is<None>()) return "None";
  if (value.is<bool>()) return std::get<bool>(value.data) ? "True" : "False";
  if (value.is<std::int64_t>()) return std::to_string(value.whole());
  if (value.is<double>()) return real_text(value.real());
  if (const auto* text = value.text()) return *text;
  if (const auto* list = value.list()) return joined(*list, "[", "]", repr);
  if (const auto* map = value.map()) {
    return joined(*map, "{", "}", [](const auto& entry) { return repr(entry.first) + ": " + repr(entry.second); });
  }
  refuse(name_of_kind(value) + " cannot be written");
}

std::int64_t size_of(const Value& value) {
  if (value.is<Undefined>()) return 0;
  if (const auto* text = value.text()) {
    std::int64_t size = 0;
    for (std::size_t at = 0; at < text->size(); ++size) at += character_at(*text, at).size;
    return size;
  }
  if (const auto* list = value.list()) return std::ssize(*list);
  if (const auto* map = value.map()) return std::ssize(*map);
  refuse(name_of_kind(value) + " has no length");
}

List items_of(const Value& value) {
  if (value.is<Undefined>()) return {};
  if (const auto* list = value.list()) return *list;
  List items;
  if (const auto* map = value.map()) {
    for (const auto& [key, item] : *map) items.push_back(key);
  } else if (const auto* text = value.text()) {
    if (text->size() > longest_of_characters) refuse("a text is too long for a list of its characters");
    for (const auto character : characters_of(*text)) items.emplace_back(std::string(character));
  } else {
    refuse("a loop needs a list, and this is " + name_of_kind(value));
  }
  return items;
}

const Value* find(const Map& map, const Value& key) {
  const auto found = std::ranges::find_if(map, [&](const auto& entry) { return are_equal(entry.first, key); });
  return found == map.end() ? nullptr : &found->second;
}

std::vector<std::string_view> characters_of(std::string_view text) {
  std::vector<std::string_view> characters;
  for (std::size_t at = 0; at < text.size(); at += characters.back().size()) {
    characters.push_back(text.substr(at, character_at(text, at).size));
  }
  return characters;
}

bool is_white(char32_t code) {
  return char_classes()[code] == CharClass::white || (code >= 0x1C && code <= 0x1F);
}

std::size_t place_of(std::string_view text, std::int64_t number) {
  std::size_t at = 0;
  for (; number > 0 && at < text.size(); --number) at += character_at(text, at).size;
  return at;
}

std::size_t place_of(std::string_view part, std::string_view text, std::size_t from) {
  if (from > text.size()) return std::string_view::npos;
  // glibc's search keeps to linear time, which std::string::find does not.
  const void* found = ::memmem(text.data() + from, text.size() - from, part.data(), part.size());
  return found == nullptr ? std::string_view::npos
                          : static_cast<std::size_t>(static_cast<const char*>(found) - text.data());
}

std::string stripped(std::string_view text, bool left, bool right, const std::string* characters) {
  std::set<char32_t> chosen;
  for (std::size_t at = 0; characters != nullptr && at < characters->size();) {
    const auto one = character_at(*characters, at);
    chosen.insert(one.code);
    at += one.size;
  }
  const auto goes = [&](char32_t code) { return characters == nullptr ? is_white(code) : chosen.contains(code); };
  while (left && !text.empty()) {
    const auto [code, size] = character_at(text, 0);
    if (!goes(code)) break;
    text.remove_prefix(size);
  }
  while (right && !text.empty()) {
    const auto last = character_before(text, text.size());
    if (!goes(character_at(text, last).code)) break;
    text = text.substr(0, last);
  }
  return std::string(text);
}

}  // namespace vernier::jinja
