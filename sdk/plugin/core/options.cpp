#include <c10/util/StringUtil.h>
#include <vernier/error.h>
#include <vernier/options.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <type_traits>

#include "synonyms.h"

namespace vernier {

namespace {

using Type = OptionInfo::Type;

template <class T>
constexpr Type type_of() {
  if constexpr (std::is_same_v<T, bool>) return Type::boolean;
  if constexpr (std::is_same_v<T, std::int64_t>) return Type::integer;
  if constexpr (std::is_same_v<T, double>) return Type::number;
  if constexpr (std::is_same_v<T, std::string>) return Type::string;
  if constexpr (std::is_same_v<T, std::vector<std::int64_t>>) return Type::integers;
  if constexpr (std::is_same_v<T, std::vector<double>>) return Type::numbers;
  if constexpr (std::is_same_v<T, std::vector<std::string>>) return Type::strings;
  if constexpr (std::is_same_v<T, Table>) return Type::table;
}

const char* type_name(const Value& value) {
  constexpr const char* names[] = {"true or false", "an integer", "a number", "a string", "a list", "a table"};
  return names[value.data.index()];
}

std::string show(bool value) {
  return value ? "true" : "false";
}
std::string show(std::int64_t value) {
  return std::to_string(value);
}
std::string show(double value) {
  char text[32];
  const auto end = std::to_chars(text, text + sizeof text, value).ptr;  // the shortest that reads back the same
  return {text, end};
}
// Returns the text in quotes, with the escapes of TOML and JSON.
std::string show(const std::string& value) {
  std::string text = "\"";
  for (const char c : value) {
    if (c == '"' || c == '\\') {
      text += {'\\', c};
    } else if (c == '\n') {
      text += "\\n";
    } else if (c == '\t') {
      text += "\\t";
    } else if (static_cast<unsigned char>(c) < 0x20 || c == 0x7F) {
      constexpr char digits[] = "0123456789abcdef";
      text += std::string("\\u00") + digits[(c >> 4) & 15] + digits[c & 15];
    } else {
      text += c;
    }
  }
  return text + '"';
}
std::string show(const Value& value);
std::string show(const Array& values) {
  std::string text = "[";
  for (const auto& value : values) text += (text.size() > 1 ? ", " : "") + show(value);
  return text + "]";
}

std::string show(const Table& table) {
  std::string text = "{";
  for (const auto& [key, value] : table) text += (text.size() > 1 ? ", " : "") + key + " = " + show(value);
  return text + "}";
}
std::string show(const Value& value) {
  return std::visit([](const auto& held) { return show(held); }, value.data);
}

std::string show(const Range& range) {
  const bool low = range.min > -std::numeric_limits<double>::infinity();
  const bool high = range.max < std::numeric_limits<double>::infinity();
  if (low && high) return show(range.min) + (range.above ? " < x <= " : " to ") + show(range.max);
  if (low) return (range.above ? "above " : "at least ") + show(range.min);
  return high ? "at most " + show(range.max) : "";
}

template <class T>
Value to_value(const T& value) {
  return {value, ""};
}
template <class T>
Value to_value(const std::vector<T>& values) {
  Array array;
  for (const auto& value : values) array.push_back({value, ""});
  return {array, ""};
}

template <class T>
bool convert(const Value& value, T& to) {
  const auto* from = std::get_if<T>(&value.data);
  if (from != nullptr) to = *from;
  return from != nullptr;
}
bool convert(const Value& value, double& to) {
  if (std::int64_t integer = 0; convert(value, integer)) {
    to = static_cast<double>(integer);
    return true;
  }
  return convert<double>(value, to);
}
template <class T>
bool convert(const Value& value, std::vector<T>& to) {
  const auto* from = std::get_if<Array>(&value.data);
  if constexpr (std::is_same_v<T, std::string>) {
    if (std::string one; from == nullptr && convert(value, one)) {  // a list of one
      to = {one};
      return true;
    }
  }
  if (from == nullptr) return false;
  to.clear();
  for (const auto& element : *from) {
    T converted{};
    if (!convert(element, converted)) return false;
    to.push_back(std::move(converted));
  }
  return true;
}

// NaN is in no range.
template <class T>
bool all_within(const T& value, const Range& range) {
  if constexpr (std::is_arithmetic_v<T>) {
    const auto number = static_cast<double>(value);
    return (range.above ? number > range.min : number >= range.min) && number <= range.max;
  }
  return true;
}
template <class T>
bool all_within(const std::vector<T>& values, const Range& range) {
  return std::ranges::all_of(values, [&](const T& value) { return all_within(value, range); });
}

// Returns the spelling of a text that TOML takes for another value; "" for any other value.
std::string quotes_for(const Value& value) {
  const bool is_scalar = value.data.index() < 3;
  if (value.where.starts_with("--set ") && is_scalar && !std::holds_alternative<double>(value.data)) {
    return "; the shell took its quotes: write --set '" + value.where.substr(6) + "=\"" + show(value) + "\"'";
  }
  const auto* number = std::get_if<double>(&value.data);
  if (number == nullptr || std::isfinite(*number)) return "";
  const std::string word = std::isnan(*number) ? "nan" : *number > 0 ? "inf" : "-inf";
  const std::string set = "--set ";
  return ": " + word + " is a number in TOML; for the text write " +
         (value.where.starts_with(set) ? set + "'" + value.where.substr(set.size()) + "=\"" + word + "\"'"
                                       : "\"" + word + "\"");
}

// Returns what to write in place of a key that the plugin, "scaler/none", does not read. keys: those that it reads.
std::string hint_for(const std::string& key, const Table& table, const std::vector<std::string>& keys,
                     const std::string& plugin) {
  const auto role = plugin.substr(0, plugin.find('/')), same = synonym(key, keys), value = show(table.at(key));
  for (const auto& word : {role + "_" + key, key}) {  // in [scaler], `enabled` is scaler_enabled
    const auto other = done_by(word, value), here = "`[" + role + "] ";
    const auto names = [&](const std::string& known) { return other.find(here + known + " ") != std::string::npos; };
    const bool is_unknown = other.find(here) != std::string::npos && !names("use") && std::ranges::none_of(keys, names);
    if (same.empty() && !other.empty() && !is_unknown) return other;
  }
  const auto elsewhere = role == "callback" || role == "monitor" ? "" : common_key(key);
  const bool is_here = elsewhere.empty() || elsewhere.starts_with(role + ".");
  if (same.empty() && !is_here) return "did you mean `" + elsewhere + "`?";
  const auto near = nearest(key, keys);
  if (near.empty()) return "`vernier plugins " + plugin + "` lists them";
  return !same.empty() && table.contains(near) ? "`" + near + "` is given, which may say the same; leave this one out"
                                               : "did you mean `" + near + "`?";
}

}  // namespace

std::string value_text(const Value& value) {
  return show(value);
}

std::string OptionInfo::type_text() const {
  constexpr const char* texts[] = {"true or false",      "an integer",        "a number",          "a string",
                                   "a list of integers", "a list of numbers", "a list of strings", "a table",
                                   "a list of tables"};
  return texts[static_cast<std::size_t>(type)];
}

std::string OptionInfo::limits_text() const {
  return words.empty() ? show(range) : c10::Join(" | ", words);
}

std::string OptionInfo::fallback_text() const {
  return is_required ? "required" : show(fallback);
}

Options::Options(std::string owner, Table table, std::string where)
    : owner_(std::move(owner)), table_(std::move(table)), where_(std::move(where)) {}

void Options::refuse(const char* key, const std::string& reason) const {
  const auto found = table_.find(key);
  const std::string& where = found == table_.end() ? where_ : found->second.where;
  throw Error((where.empty() ? "" : where + ": ") + shortened(owner_, 400) + ": `" + shortened(key) + "` " + reason,
              Error::Kind::configuration, owner_.substr(0, owner_.find(": ")), where);
}

void Options::resumable(const char* key) {
  for (auto& option : declared_) option.is_resumable = option.is_resumable || option.key == key;
}

void Options::saves_memory(const char* key, const char* value, const char* price) {
  less_memory_.push_back({key, value, price});
}

template <class T>
T Options::read(const char* key, const T& fallback, const char* meaning, Range range, std::vector<std::string> words) {
  T value = fallback;
  const auto found = table_.find(key);
  const bool is_right_type = found == table_.end() || convert(found->second, value);
  declared_.push_back({key, meaning, type_of<T>(), to_value(fallback), to_value(value), range, std::move(words)});
  const auto type = declared_.back().type_text();
  if (!is_right_type) {
    const auto hint = std::is_same_v<T, std::string> ? quotes_for(found->second) : "";
    refuse(key, "must be " + type + ", and is " + type_name(found->second) + hint + " (" + meaning + ")");
  }
  if constexpr (std::is_same_v<T, double>) {  // it would only spoil the weights; elsewhere inf may mean "no limit"
    if (std::isinf(value) && std::isfinite(fallback) && owner_.starts_with("optimizer/")) {
      refuse(key, std::string("must be finite, and is ") + show(value) + " (" + meaning + ")");
    }
  }
  if (!all_within(value, range)) {
    const std::string wanted = show(range);  // empty where NaN is all that is refused
    refuse(key, "must be " + (wanted.empty() ? type : wanted) + ", and is " + shortened(show(declared_.back().value)) +
                    " (" + meaning + ")");
  }
  return value;
}

bool Options::get(const char* key, bool fallback, const char* meaning) {
  return read(key, fallback, meaning, {});
}

std::string Options::get(const char* key, const char* fallback, const char* meaning) {
  return read(key, std::string(fallback), meaning, {});
}

std::string Options::get(const char* key, const std::string& fallback, const char* meaning) {
  return read(key, fallback, meaning, {});
}

std::vector<std::int64_t> Options::get(const char* key, std::vector<std::int64_t> fallback, const char* meaning,
                                       Range range) {
  return read(key, fallback, meaning, range);
}

std::vector<double> Options::get(const char* key, std::vector<double> fallback, const char* meaning, Range range) {
  return read(key, fallback, meaning, range);
}

std::vector<std::string> Options::get(const char* key, std::vector<std::string> fallback, const char* meaning) {
  return read(key, fallback, meaning, {});
}

Table Options::get(const char* key, const Table& fallback, const char* meaning) {
  return read(key, fallback, meaning, {});
}

std::int64_t Options::integer(const char* key, std::int64_t fallback, const char* meaning, Range range) {
  return read(key, fallback, meaning, range);
}

double Options::real(const char* key, double fallback, const char* meaning, Range range) {
  return read(key, fallback, meaning, range);
}

std::string Options::choose(const char* key, const char* fallback, std::initializer_list<const char*> words,
                            const char* meaning) {
  std::string chosen = read(key, std::string(fallback), meaning, {}, {words.begin(), words.end()});
  if (std::ranges::find(words, chosen) == words.end()) {
    const std::string near = nearest(chosen, {words.begin(), words.end()});
    refuse(key, "is \"" + shortened(chosen) + "\"; " + (near.empty() ? "it" : "did you mean \"" + near + "\"? It") +
                    " takes " + declared_.back().limits_text());
  }
  return chosen;
}

template <class T>
T Options::require(const char* key, const char* meaning, Range range) {
  T value = read(key, T{}, meaning, given(key) ? range : Range{});
  declared_.back().is_required = true;
  declared_.back().range = range;
  bool is_missing = !given(key);
  if constexpr (!std::is_same_v<T, std::int64_t>) is_missing = value.empty();
  if (is_missing && !describing_) refuse(key, std::string("is needed: ") + meaning);
  return value;
}

template VERNIER_API std::int64_t Options::require<std::int64_t>(const char*, const char*, Range);
template VERNIER_API std::vector<std::int64_t> Options::require<std::vector<std::int64_t>>(const char*, const char*,
                                                                                           Range);
template VERNIER_API std::string Options::require<std::string>(const char*, const char*, Range);
template VERNIER_API std::vector<std::string> Options::require<std::vector<std::string>>(const char*, const char*,
                                                                                         Range);
template VERNIER_API Table Options::require<Table>(const char*, const char*, Range);

void Options::tables(const char* key, const char* meaning, const std::function<void(Options&)>& read_one) {
  const auto found = table_.find(key);
  const auto* entries = found == table_.end() ? nullptr : std::get_if<Array>(&found->second.data);
  const auto slash = owner_.find('/');
  const std::string header = "[[" + owner_.substr(0, slash) + "." + key + "]]";
  const std::string wrong = std::string("must be a list of tables: write ") + header + " (" + meaning + ")";
  if (found != table_.end() && entries == nullptr) refuse(key, wrong);
  const Array none_given;
  declared_.push_back({key, meaning, Type::tables, {none_given, ""}, {entries == nullptr ? none_given : *entries, ""}});
  const auto declare = [&](const Options& one) {
    for (auto declared : one.declared_) {
      declared.key = std::string(key) + "." + declared.key;
      declared.value = declared.fallback;  // each table has its own, which stand with the list
      declared_.push_back(std::move(declared));
    }
  };
  Options none(owner_, {}, where_);
  none.describing_ = true;
  if (describing_) {
    read_one(none);
    declare(none);
  }
  for (std::size_t i = 0; entries != nullptr && i < entries->size(); ++i) {
    const auto* table = std::get_if<Table>(&(*entries)[i].data);
    if (table == nullptr) refuse(key, wrong);
    Options one(owner_ + ": " + header + " " + std::to_string(i + 1), *table, (*entries)[i].where);
    read_one(one);
    one.refuse_unread();
  }
}

void Options::refuse_unread() const {
  std::vector<std::string> keys;
  for (const auto& known : declared_) keys.push_back(known.key);
  for (const auto& [key, value] : table_) {
    if (std::ranges::find(keys, key) == keys.end()) {
      refuse(key.c_str(), "is not an option here; " + hint_for(key, table_, keys, owner_.substr(0, owner_.find(": "))));
    }
  }
}

}  // namespace vernier
