// Sources: Python's methods of str and dict; the filters and tests of Jinja 3.1 (jinja2/filters.py, jinja2/tests.py);
// tojson of Hugging Face's transformers 5 (utils/chat_template_utils.py).
#include <vernier/error.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <map>

#include "operations.h"
#include "run.h"
#include "text/unicode/characters.h"
#include "text/unicode/unicode.h"

namespace vernier::jinja {

namespace {

constexpr std::size_t most_parts = 1'000'000;  // parts that split() may return
constexpr std::int64_t widest = 1000;          // widest indentation
constexpr double largest_whole = 9223372036854775808.0;

// words: the filter `title`, which begins a word behind white space and some signs; title: the method, behind any sign.
enum class Case { upper, lower, title, words, capital };

std::string in_case(const std::string& text, Case wanted) {
  const bool has_others = text.find("\u03a3") != text.npos || text.find("\u0130") != text.npos;  // they become others
  if (wanted == Case::lower && !has_others) return in_lower_case(text);
  std::string result;
  bool begins = true;
  for (const char c : text) {
    if (static_cast<unsigned char>(c) >= 0x80) refuse("upper and lower case of letters beyond ASCII are not supported");
    const bool is_capital = c >= 'A' && c <= 'Z', is_small = c >= 'a' && c <= 'z';
    const bool up = wanted == Case::upper || (wanted != Case::lower && begins);
    begins = (wanted == Case::title && !is_capital && !is_small) ||
             (wanted == Case::words && (is_white(static_cast<char32_t>(c)) || std::string_view("-({[<").find(c) < 5));
    result += up && is_small ? static_cast<char>(c - 32) : !up && is_capital ? static_cast<char>(c + 32) : c;
  }
  return result;
}

std::string replaced(const std::string& text, const std::string& from, const std::string& to, std::int64_t most) {
  if (from.empty()) refuse("replace() of an empty text is not supported");
  std::string result;
  std::size_t at = 0;
  for (std::int64_t i = 0; most < 0 || i < most; ++i) {
    const auto found = place_of(from, text, at);
    if (found == std::string::npos) break;
    result += text.substr(at, found - at) + to;
    Run::require_small(result.size());
    at = found + from.size();
  }
  return result + text.substr(at);
}

List split(const std::string& text, const std::string* by, std::int64_t most) {
  List parts;
  const auto add = [&](std::string part) {
    if (parts.size() == most_parts) refuse("split() makes too many parts");
    parts.emplace_back(std::move(part));
  };
  if (by != nullptr) {
    if (by->empty()) refuse("split() by an empty text");
    std::size_t at = 0;
    for (auto found = place_of(*by, text); found != std::string::npos && (most < 0 || std::ssize(parts) < most);
         found = place_of(*by, text, at)) {
      add(text.substr(at, found - at));
      at = found + by->size();
    }
    add(text.substr(at));
    return parts;
  }
  for (std::size_t at = 0;;) {
    const auto skip = [&](bool white) {
      while (at < text.size() && is_white(character_at(text, at).code) == white) at += character_at(text, at).size;
    };
    skip(true);
    if (at == text.size()) return parts;
    const auto begin = at;
    if (most >= 0 && std::ssize(parts) == most) at = text.size();
    skip(false);
    add(text.substr(begin, at - begin));
  }
}

// One of several texts at the beginning or the end.
bool has_end(Run& run, const std::string& text, const Value& given, bool at_end) {
  const auto is_there = [&](const Value& one) {
    if (one.text() == nullptr) refuse("startswith() and endswith() take texts");
    run.step();
    run.walk(one);
    return at_end ? text.ends_with(*one.text()) : text.starts_with(*one.text());
  };
  return given.list() != nullptr ? std::ranges::any_of(*given.list(), is_there) : is_there(given);
}

// parameters: the names of those that are supported, in their order; "*": any.
void refuse_others(const std::string& what, const char* parameters, const Arguments& given) {
  if (parameters == std::string_view("*") || (given.places.empty() && given.names.empty())) return;
  const auto known = split(parameters, nullptr, -1);
  if (given.places.size() > known.size()) {
    refuse(what + " is not supported with more than " + std::to_string(known.size()) + " arguments");
  }
  for (const auto& [name, value] : given.names) {
    const auto is_it = [&, &name = name](const Value& one) { return *one.text() == name; };
    const auto found = std::ranges::find_if(known, is_it);
    if (found == known.end()) refuse(what + " is not supported with the argument " + name);
    if (found - known.begin() < std::ssize(given.places)) refuse(what + " has two values for its argument " + name);
  }
}

bool flag_in(const Arguments& given, std::size_t place, const char* name) {
  const auto* value = given.find(place, name);
  return value != nullptr && is_true(*value);
}

const std::string& text_in(const Arguments& given, std::size_t place, const char* name, const char* what) {
  const auto* value = given.find(place, name);
  if (value == nullptr || value->text() == nullptr) refuse(std::string(what) + "() needs a text");
  return *value->text();
}

std::int64_t whole_in(const Arguments& given, std::size_t place, const char* name, std::int64_t fallback) {
  const auto* value = given.find(place, name);
  return value == nullptr || value->is<None>() ? fallback : value->whole();
}

Value replaced_text(const Value& value, const Arguments& given) {
  return replaced(str(value), text_in(given, 0, "old", "replace"), text_in(given, 1, "new", "replace"),
                  whole_in(given, 2, "count", -1));
}

bool is_number(const std::string& text) {
  return !text.empty() && std::ranges::all_of(text, [](char c) { return c >= '0' && c <= '9'; });
}

// True for a call of this method, whose other arguments are refused.
bool is_call(const std::string& name, const char* method, const char* parameters, const Arguments& given) {
  if (name == method) refuse_others("the method " + name + "()", parameters, given);
  return name == method;
}

Value method_of_text(Run& run, const std::string& text, const std::string& name, const Arguments& given) {
  const auto is = [&](const char* method, const char* parameters) { return is_call(name, method, parameters, given); };
  if (is("strip", "chars") || is("lstrip", "chars") || is("rstrip", "chars")) {
    const auto* characters = given.find(0, "chars");
    const auto* chosen = characters == nullptr ? nullptr : characters->text();
    return stripped(text, name != "rstrip", name != "lstrip", chosen);
  }
  if (is("startswith", "prefix") || is("endswith", "suffix")) {
    if (given.places.size() != 1) refuse(name + "() takes one argument");
    return has_end(run, text, given.places[0], name == "endswith");
  }
  if (is("split", "sep maxsplit")) {
    const auto* by = given.find(0, "sep");
    return split(text, by == nullptr ? nullptr : by->text(), whole_in(given, 1, "maxsplit", -1));
  }
  if (is("replace", "old new count")) return replaced_text(text, given);
  if (is("upper", "")) return in_case(text, Case::upper);
  if (is("lower", "")) return in_case(text, Case::lower);
  if (is("title", "")) return in_case(text, Case::title);
  if (is("capitalize", "")) return in_case(text, Case::capital);
  if (is("removeprefix", "prefix") || is("removesuffix", "suffix")) {
    const auto& end = text_in(given, 0, name == "removeprefix" ? "prefix" : "suffix", name.c_str());
    if (!has_end(run, text, end, name == "removesuffix")) return text;
    return name == "removeprefix" ? text.substr(end.size()) : text.substr(0, text.size() - end.size());
  }
  if (is("find", "sub")) {
    const auto found = place_of(text_in(given, 0, "sub", "find"), text);
    return found == std::string::npos ? Value(-1) : Value(size_of(text.substr(0, found)));
  }
  if (is("count", "sub")) {
    const auto& part = text_in(given, 0, "sub", "count");
    if (part.empty()) refuse("count() of an empty text is not supported");
    std::int64_t count = 0;
    for (auto at = place_of(part, text); at != std::string::npos; at = place_of(part, text, at + part.size())) {
      ++count;
    }
    return count;
  }
  if (is("join", "iterable")) {
    std::string result;
    if (given.places.size() != 1) refuse("join() takes one list");
    run.walk(given.places[0]);
    for (const auto& item : items_of(given.places[0])) {
      if (item.text() == nullptr) refuse("join() takes texts");
      Run::require_small((result += *item.text() + text).size());
    }
    return result.substr(0, result.size() - std::min(result.size(), text.size()));
  }
  if (is("isdigit", "")) return is_number(text);
  refuse("the method " + name + "() of texts is not supported");
}

Value pairs_of(const Map& map) {
  List list;
  for (const auto& [key, value] : map) list.emplace_back(List{key, value});
  return list;
}

// With the names of its parameters, as for refuse_others().
using Filter = std::pair<std::function<Value(Run&, const Value&, const Arguments&)>, const char*>;

// The part of a value at "function.name", or at the place in a list that a number says. fallback: if there is none.
Value part_at(Value value, const Value& attribute, const Value* fallback = nullptr) {
  const std::string dot = ".";
  for (const auto& name : attribute.text() == nullptr ? List{attribute} : split(*attribute.text(), &dot, -1)) {
    const bool is_place = name.text() != nullptr && name.text()->size() < 10 && is_number(*name.text());
    value = item_of(value, is_place ? Value(std::stoll(*name.text())) : name);
    if (fallback != nullptr && !fallback->is<None>() && value.is<Undefined>()) value = *fallback;
  }
  return value;
}

// Returns the attribute of an item, or itself, to compare it by, without case unless that counts.
Value key_of(const Value& item, const Value* attribute, bool has_case) {
  auto key = attribute == nullptr || attribute->is<None>() ? item : part_at(item, *attribute);
  return key.text() == nullptr || has_case ? key : in_case(*key.text(), Case::lower);
}

Value joined(const Value& value, const Arguments& given) {
  const auto* between = given.find(0, "d");
  const auto* attribute = given.find(1, "attribute");
  std::string result;
  bool is_first = true;
  for (const auto& item : items_of(value)) {
    if (!is_first && between != nullptr) result += str(*between);
    is_first = false;
    result += str(attribute == nullptr ? item : part_at(item, *attribute));
    Run::require_small(result.size());
  }
  return result;
}

// The argument of select(), reject() and so on: a test with its own arguments, or whether the value is true.
bool chosen(Run& run, const Value& value, const Arguments& given, std::size_t place) {
  if (place >= given.places.size()) return is_true(value);
  if (given.places[place].text() == nullptr) refuse("a test must be named by a text");
  const Arguments rest{{given.places.begin() + static_cast<std::ptrdiff_t>(place) + 1, given.places.end()},
                       given.names};
  return passes(run, *given.places[place].text(), value, rest);
}

Value selected(Run& run, const Value& value, const Arguments& given, bool by_attribute, bool keeps) {
  if (by_attribute && given.places.empty()) refuse("selectattr and rejectattr need the name of an attribute");
  List list;
  for (const auto& item : items_of(value)) {
    const auto looked_at = by_attribute ? part_at(item, given.places[0]) : item;
    if (chosen(run, looked_at, given, by_attribute ? 1 : 0) == keeps) list.push_back(item);
  }
  return list;
}

Value mapped(Run& run, const Value& value, const Arguments& given) {
  List list;
  const auto* attribute = given.places.empty() ? given.find(0, "attribute") : nullptr;
  if (attribute != nullptr) refuse_others("the filter map", "attribute default", given);
  for (const auto& item : items_of(value)) {
    if (attribute != nullptr) {
      list.push_back(part_at(item, *attribute, given.find(1, "default")));
    } else {
      if (given.places.empty() || given.places[0].text() == nullptr) refuse("map needs the name of a filter");
      list.push_back(
          filtered(run, *given.places[0].text(), item, {{given.places.begin() + 1, given.places.end()}, given.names}));
    }
  }
  return list;
}

Value sorted(Run& run, const Value& value, const Arguments& given) {
  auto list = items_of(value);
  const auto* attribute = given.find(2, "attribute");
  const bool reverses = flag_in(given, 0, "reverse"), has_case = flag_in(given, 1, "case_sensitive");
  const auto key = [&](const Value& item) { return key_of(item, attribute, has_case); };
  std::ranges::stable_sort(list, [&](const Value& a, const Value& b) {
    run.step();
    run.walk_all(a);
    run.walk_all(b);
    return reverses ? is_less(key(b), key(a)) : is_less(key(a), key(b));
  });
  return list;
}

Value unique(Run& run, const Value& value, const Arguments& given) {
  List list, keys;
  for (const auto& item : items_of(value)) {
    run.walk_all(item);
    auto key = key_of(item, given.find(1, "attribute"), flag_in(given, 0, "case_sensitive"));
    if (std::ranges::any_of(keys, [&](const Value& one) { return equal(run, one, key); })) continue;
    keys.push_back(std::move(key));
    list.push_back(item);
  }
  return list;
}

Value reversed(const Value& value) {
  auto list = items_of(value);
  std::ranges::reverse(list);
  if (value.text() == nullptr) return list;
  std::string text;
  for (const auto& one : list) text += *one.text();
  return text;
}

std::int64_t width_of(const Value* given, std::int64_t fallback) {
  if (given == nullptr || given->is<None>()) return fallback;
  const auto width = given->whole();
  if (width < 0 || width > widest) refuse("an indentation must be from 0 to " + std::to_string(widest));
  return width;
}

Value indented(const Value& value, const Arguments& given) {
  const auto* width = given.find(0, "width");
  const bool first = flag_in(given, 1, "first"), blank = flag_in(given, 2, "blank");
  const std::string by = width != nullptr && width->text() != nullptr
                             ? *width->text()
                             : std::string(static_cast<std::size_t>(width_of(width, 4)), ' ');
  std::string result;
  bool is_first = true;
  const std::string line_break = "\n";
  for (const auto& line : split(str(value), &line_break, -1)) {
    const bool indents = is_first ? first : !line.text()->empty() || blank;
    result += (is_first ? "" : "\n") + (indents ? by : "") + *line.text();
    Run::require_small(result.size());
    is_first = false;
  }
  return result;
}

Value whole_of(const Value& value, const Arguments& given) {
  if (value.is_whole()) return value.whole();
  auto text = value.text() == nullptr ? std::string() : stripped(*value.text(), true, true);
  if (text.find('_') != text.npos && text.find_first_not_of("+-._eE0123456789") == text.npos) {
    refuse("int of a number with '_' is not supported");
  }
  if (text.starts_with('+') && !text.starts_with("+-")) text.erase(0, 1);
  const auto* end = text.data() + text.size();
  std::int64_t whole = 0;
  const auto [last, trouble] = std::from_chars(text.data(), end, whole);
  if (trouble == std::errc() && last == end) return whole;
  double real = value.is<double>() ? value.real() : NAN;
  if (std::from_chars(text.data(), end, real).ptr != end) real = NAN;
  if (std::isfinite(real) || value.is<double>()) {
    if (!(std::abs(real) < largest_whole)) refuse("int needs a number of less than 2^63");
    return static_cast<std::int64_t>(real);
  }
  const auto* other = given.find(0, "default");
  return other == nullptr ? Value(0) : *other;
}

Value json(const Value& value, const Arguments& given) {
  constexpr std::pair<std::size_t, const char*> others[] = {{0, "ensure_ascii"}, {2, "separators"}, {3, "sort_keys"}};
  for (const auto& [place, name] : others) {
    if (flag_in(given, place, name)) refuse("the option " + std::string(name) + " of tojson is not supported");
  }
  return json_of(value, width_of(given.find(1, "indent"), -1));
}

Value with_default(const Value& value, const Arguments& given) {
  const auto* other = given.find(0, "default_value");
  const bool uses = value.is<Undefined>() || (flag_in(given, 1, "boolean") && !is_true(value));
  return uses ? (other == nullptr ? Value("") : *other) : value;
}

Value trimmed(const Value& value, const Arguments& given) {
  const auto* characters = given.find(0, "chars");
  return stripped(str(value), true, true, characters == nullptr ? nullptr : characters->text());
}

Value end_of(const Value& value, const char* name) {
  const auto size = size_of(value);
  if (size == 0) return Undefined{name};
  const auto place = name == std::string("first") ? 0 : size - 1;
  return value.map() == nullptr ? item_of(value, place) : (*value.map())[static_cast<std::size_t>(place)].first;
}

Value entries_in(const Value& value) {
  if (value.is<Undefined>()) return List();
  if (value.map() == nullptr) refuse("items needs a mapping");
  return pairs_of(*value.map());
}

Value sorted_entries(Run& run, const Value& value, const Arguments& given) {
  if (value.map() == nullptr) refuse("dictsort needs a mapping");
  return sorted(run, pairs_of(*value.map()), {{false, flag_in(given, 0, "case_sensitive"), 0}, {}});
}

Value absolute(const Value& value) {
  if (!value.is_whole()) return std::abs(value.real());
  return value.whole() < 0 ? computed("-", 0, value) : value;
}

const std::map<std::string, Filter, std::less<>>& filters() {
  const auto simple = [](auto function) {
    return [function](Run&, const Value& value, const Arguments&) { return Value(function(value)); };
  };
  const auto given = [](auto function) {
    return [function](Run&, const Value& value, const Arguments& more) { return Value(function(value, more)); };
  };
  const auto cased = [&](Case wanted) {
    return simple([wanted](const Value& value) { return in_case(str(value), wanted); });
  };
  const auto selects = [&](bool by_attribute, bool keeps) {
    return [=](Run& run, const Value& value, const Arguments& more) {
      return selected(run, value, more, by_attribute, keeps);
    };
  };
  static const std::map<std::string, Filter, std::less<>> all = {
      {"tojson", {given(json), "ensure_ascii indent separators sort_keys"}},
      {"trim", {given(trimmed), "chars"}},
      {"length", {simple(size_of), ""}},
      {"count", {simple(size_of), ""}},
      {"default", {given(with_default), "default_value boolean"}},
      {"d", {given(with_default), "default_value boolean"}},
      {"upper", {cased(Case::upper), ""}},
      {"lower", {cased(Case::lower), ""}},
      {"title", {cased(Case::words), ""}},
      {"capitalize", {cased(Case::capital), ""}},
      {"join", {given(joined), "d attribute"}},
      {"string", {simple(str), ""}},
      {"safe", {simple(str), ""}},
      {"list", {simple(items_of), ""}},
      {"first", {simple([](const Value& value) { return end_of(value, "first"); }), ""}},
      {"last", {simple([](const Value& value) { return end_of(value, "last"); }), ""}},
      {"items", {simple(entries_in), ""}},
      {"dictsort", {sorted_entries, "case_sensitive"}},
      {"select", {selects(false, true), "*"}},
      {"reject", {selects(false, false), "*"}},
      {"selectattr", {selects(true, true), "*"}},
      {"rejectattr", {selects(true, false), "*"}},
      {"map", {mapped, "*"}},
      {"sort", {sorted, "reverse case_sensitive attribute"}},
      {"unique", {unique, "case_sensitive attribute"}},
      {"reverse", {simple(reversed), ""}},
      {"indent", {given(indented), "width first blank"}},
      {"int", {given(whole_of), "default"}},
      {"float", {simple([](const Value& value) { return value.real(); }), ""}},
      {"abs", {simple(absolute), ""}},
      {"replace", {given(replaced_text), "old new count"}},
  };
  return all;
}

// True for filters that look at the parts of a list, and not at the parts of these.
bool takes_list(const std::string& name) {
  constexpr const char* names[] = {"length", "count", "default", "d",       "list",       "first",
                                   "last",   "items", "select",  "reject",  "selectattr", "rejectattr",
                                   "map",    "sort",  "unique",  "reverse", "dictsort"};
  return std::ranges::find(names, name) != std::end(names);
}

using Test = std::function<bool(const Value&)>;

const std::map<std::string, Test, std::less<>>& tests() {
  const auto is_sequence = [](const Value& v) {
    return v.list() != nullptr || v.text() != nullptr || v.map() != nullptr;
  };
  static const std::map<std::string, Test, std::less<>> all = {
      {"defined", [](const Value& v) { return !v.is<Undefined>(); }},
      {"undefined", [](const Value& v) { return v.is<Undefined>(); }},
      {"none", [](const Value& v) { return v.is<None>(); }},
      {"string", [](const Value& v) { return v.text() != nullptr; }},
      {"number", [](const Value& v) { return v.is_number(); }},
      {"integer", [](const Value& v) { return v.is<std::int64_t>(); }},
      {"float", [](const Value& v) { return v.is<double>(); }},
      {"boolean", [](const Value& v) { return v.is<bool>(); }},
      {"true", [](const Value& v) { return v.is<bool>() && is_true(v); }},
      {"false", [](const Value& v) { return v.is<bool>() && !is_true(v); }},
      {"mapping", [](const Value& v) { return v.map() != nullptr; }},
      {"sequence", [is_sequence](const Value& v) { return is_sequence(v) || v.is<Undefined>(); }},
      {"iterable", [is_sequence](const Value& v) { return is_sequence(v) || v.is<Undefined>(); }},
      {"callable", [](const Value& v) { return v.function() != nullptr; }},
      {"odd", [](const Value& v) { return v.whole() % 2 != 0; }},
      {"even", [](const Value& v) { return v.whole() % 2 == 0; }},
      {"lower",
       [](const Value& v) { return str(v) == in_case(str(v), Case::lower) && str(v) != in_case(str(v), Case::upper); }},
      {"upper",
       [](const Value& v) { return str(v) == in_case(str(v), Case::upper) && str(v) != in_case(str(v), Case::lower); }},
  };
  return all;
}

}  // namespace

Value method_of(Run& run, const Value& value, const std::string& name, const Arguments& arguments) {
  if (value.text() != nullptr) return method_of_text(run, *value.text(), name, arguments);
  if (const auto* map = value.map()) {
    if (is_call(name, "items", "", arguments)) return pairs_of(*map);
    if (is_call(name, "keys", "", arguments)) return items_of(value);
    if (is_call(name, "values", "", arguments)) {
      List list;
      for (const auto& [key, part] : *map) list.push_back(part);
      return list;
    }
    if (is_call(name, "get", "key default", arguments)) {
      if (arguments.places.empty()) refuse("get() needs a key");
      if (const auto* found = find(*map, arguments.places[0])) return *found;
      const auto* other = arguments.find(1, "default");
      return other != nullptr ? *other : Value(None());
    }
  }
  auto function = attribute_of(value, name);
  if (function.is<Undefined>()) refuse(name_of_kind(value) + " has no method " + name + "() that is supported");
  return called(run, function, arguments);
}

Value filtered(Run& run, const std::string& name, const Value& value, const Arguments& arguments) {
  const auto found = filters().find(name);
  if (found == filters().end()) refuse("the filter " + name + " is not supported");
  refuse_others("the filter " + name, found->second.second, arguments);
  run.step();
  takes_list(name) ? run.walk(value) : run.walk_all(value);
  return found->second.first(run, value, arguments);
}

bool passes(Run& run, const std::string& test, const Value& value, const Arguments& arguments) {
  if (test == "lower" || test == "upper") run.walk_all(value);
  const auto found = tests().find(test);
  refuse_others("the test " + test, found == tests().end() ? "other" : "", arguments);
  if (found != tests().end()) return found->second(value);
  if (arguments.places.size() != 1) refuse("the test " + test + " is not supported");
  const auto& other = arguments.places[0];
  if (test == "equalto" || test == "eq" || test == "==" || test == "sameas") return equal(run, value, other);
  if (test == "ne" || test == "!=") return !equal(run, value, other);
  if (test == "in") return contains(run, other, value);
  if (test == "lt" || test == "<" || test == "lessthan") return is_less(value, other);
  if (test == "gt" || test == ">" || test == "greaterthan") return is_less(other, value);
  if (test == "le" || test == "<=") return !is_less(other, value);
  if (test == "ge" || test == ">=") return !is_less(value, other);
  if (test == "divisibleby") return !is_true(computed("%", value.whole(), other.whole()));
  refuse("the test " + test + " is not supported");
}

}  // namespace vernier::jinja
