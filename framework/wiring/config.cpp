#include "config.h"

#include <toml++/toml.h>
#include <vernier/error.h>

#include <algorithm>
#include <filesystem>
#include <sstream>

#include "core/data_file.h"
#include "core/printable.h"
#include "toml_depth.h"

namespace vernier {

namespace {

constexpr std::size_t longest_toml = 1 << 20;  // bytes

[[noreturn]] void refuse_depth(const std::string& where) {
  refuse(where + ": tables and lists are in each other deeper than " + std::to_string(deepest_toml) +
         " levels; no option needs that");
}

// toml++ takes a text apart by recursion, so what is too deep must not get there.
toml::table parse(const std::string& text, const std::string& file) {
  if (const int line = line_too_deep(text); line > 0) refuse_depth(file + ":" + std::to_string(line));
  return toml::parse(text, file);
}

void refuse_nul(const std::string& text, const std::string& where) {
  if (text.find('\0') == std::string::npos) return;
  refuse(where + ": the text \"" + shortened(text) + "\" has a NUL character (\\u0000), which none may have");
}

std::string line_of(const std::string& file, const toml::node& node) {
  return file + ":" + std::to_string(node.source().begin.line);
}

// `where`: a fixed place for --set, else the file whose lines count.
Value convert(const toml::node& node, const std::string& file, const std::string& fixed_where) {
  Value value{{}, fixed_where.empty() ? line_of(file, node) : fixed_where};
  if (const auto* table = node.as_table()) {
    Table converted;
    for (const auto& [key, child] : *table) {
      refuse_nul(std::string(key.str()), value.where);
      auto& entry = converted[std::string(key.str())] = convert(child, file, fixed_where);
      // toml++ dates a value from its own position; the key's line is what a person looks for.
      if (fixed_where.empty() && !child.is_array_of_tables() && !child.is_table()) {
        entry.where = file + ":" + std::to_string(key.source().begin.line);
      }
    }
    value.data = std::move(converted);
  } else if (const auto* array = node.as_array()) {
    Array converted;
    for (const auto& child : *array) converted.push_back(convert(child, file, fixed_where));
    value.data = std::move(converted);
  } else if (const auto* boolean = node.as_boolean()) {
    value.data = boolean->get();
  } else if (const auto* integer = node.as_integer()) {
    value.data = integer->get();
  } else if (const auto* real = node.as_floating_point()) {
    value.data = real->get();
  } else if (const auto* text = node.as_string()) {
    refuse_nul(text->get(), value.where);
    value.data = text->get();
  } else {
    refuse(value.where + ": dates and times are not used here; write a number or a string");
  }
  return value;
}

std::string use_of(const Value& value) {
  const auto* table = std::get_if<Table>(&value.data);
  if (table == nullptr || table->count("use") == 0) return "";
  const auto* use = std::get_if<std::string>(&table->at("use").data);
  return use == nullptr ? "" : *use;
}

bool is_array_of_tables(const Value& value) {
  const auto* array = std::get_if<Array>(&value.data);
  return array != nullptr && !array->empty() && std::all_of(array->begin(), array->end(), [](const Value& each) {
           return std::holds_alternative<Table>(each.data);
         });
}

void merge(Value& into, Value from, int depth);

void merge_entries(Array& into, Array from) {
  const auto written_before = static_cast<std::ptrdiff_t>(into.size());
  for (auto& entry : from) {
    const auto end = into.begin() + written_before;
    const auto same =
        std::find_if(into.begin(), end, [&](const Value& other) { return use_of(other) == use_of(entry); });
    if (same != end) {
      merge(*same, std::move(entry), 2);
    } else {
      into.push_back(std::move(entry));
    }
  }
}

// Callbacks and monitors, the lists at depth 1, are merged one by one; any other list is a value, which is replaced.
void merge(Value& into, Value from, int depth) {
  auto* table = std::get_if<Table>(&into.data);
  auto* other = std::get_if<Table>(&from.data);
  if (depth == 1 && is_array_of_tables(into) && is_array_of_tables(from)) {
    merge_entries(std::get<Array>(into.data), std::move(std::get<Array>(from.data)));
  } else if (table == nullptr || other == nullptr ||
             (!use_of(from).empty() && !use_of(into).empty() && use_of(from) != use_of(into))) {
    into = std::move(from);
  } else {
    for (auto& [key, value] : *other) {
      const auto found = table->find(key);
      if (found == table->end()) {
        table->emplace(key, std::move(value));
      } else {
        merge(found->second, std::move(value), depth + 1);
      }
    }
  }
}

Value parse_file(const std::string& file) {
  std::error_code none;
  if (!std::filesystem::exists(file, none)) refuse(file + ": there is no such file; name the TOML file of a run");
  if (std::filesystem::is_directory(file, none)) {
    refuse(file + ": is a folder, not a TOML file; to resume a run, add --resume=" + file + " to its own files");
  }
  try {
    return convert(parse(read_data_file(file, longest_toml), file), file, "");
  } catch (const toml::parse_error& error) {
    const auto line = error.source().begin.line;
    const std::string description(error.description());
    refuse(file + (line != 0 ? ":" + std::to_string(line) + ": " : ": ") + description);
  }
}

// The value of a --set: TOML, or else a string.
Value parse_value(const std::string& text, const std::string& where) {
  const auto first = text.find_first_not_of(" \t");
  // Only these can nest. The dots of a path are none of it.
  const bool may_nest = first != std::string::npos && (text[first] == '[' || text[first] == '{');
  if ((may_nest || text.find('\n') != std::string::npos) && line_too_deep("value = " + text) > 0) refuse_depth(where);
  try {
    return convert(*toml::parse("value = " + text).get("value"), "", where);
  } catch (const toml::parse_error&) {
    return {text, where};
  }
}

Value parse_set(const std::string& set) {
  const auto equals = set.find('=');
  const std::string key = set.substr(0, set.find_last_not_of(' ', equals == 0 ? 0 : equals - 1) + 1);
  const bool has_empty_part =
      key.empty() || key.front() == '.' || key.back() == '.' || key.find("..") != std::string::npos;
  if (equals == std::string::npos || equals == 0 || has_empty_part) {
    refuse("--set " + shortened(set) + ": write --set key=value, as --set run.steps=100");
  }
  const std::string where = "--set " + shortened(key);
  if (std::ranges::count(key, '.') >= deepest_toml) refuse_depth(where);
  if (set.size() > longest_toml) {
    refuse(where + ": has " + std::to_string(set.size()) + " bytes; at most " + std::to_string(longest_toml) +
           " are read");
  }
  Value value = parse_value(set.substr(equals + 1), where);
  // From the innermost key outwards: a.b.c = v becomes {a: {b: {c: v}}}.
  std::vector<std::string> keys;
  std::stringstream parts(key);
  for (std::string part; std::getline(parts, part, '.');) keys.push_back(part);
  const bool is_list = keys.front() == "callback" || keys.front() == "monitor";
  for (auto part = keys.rbegin(); part != keys.rend(); ++part) {
    const auto depth = keys.rend() - part;  // 1 for the outermost
    if (is_list && depth == 2) {
      if (!std::holds_alternative<Table>(value.data)) {
        refuse(where + ": name the option too, as " + where + ".max_norm=1.0");
      }
      std::get<Table>(value.data)["use"] = {*part, value.where};
      value = {Array{std::move(value)}, where};
    } else {
      value = {Table{{*part, std::move(value)}}, where};
    }
  }
  return value;
}

toml::table to_toml_table(const Table& table);
toml::array to_toml_array(const Array& array);

// Hands the value to `add` as the type that toml++ has for it.
template <class Add>
void convert_back(const Value& value, const Add& add) {
  if (const auto* table = std::get_if<Table>(&value.data)) return add(to_toml_table(*table));
  if (const auto* array = std::get_if<Array>(&value.data)) return add(to_toml_array(*array));
  if (const auto* boolean = std::get_if<bool>(&value.data)) return add(*boolean);
  if (const auto* integer = std::get_if<std::int64_t>(&value.data)) return add(*integer);
  if (const auto* real = std::get_if<double>(&value.data)) return add(*real);
  add(std::get<std::string>(value.data));
}

toml::table to_toml_table(const Table& table) {
  toml::table converted;
  for (const auto& [key, value] : table) {
    convert_back(value, [&converted, &key = key](auto node) { converted.insert_or_assign(key, std::move(node)); });
  }
  return converted;
}

toml::array to_toml_array(const Array& array) {
  toml::array converted;
  for (const auto& value : array) {
    convert_back(value, [&converted](auto node) { converted.push_back(std::move(node)); });
  }
  return converted;
}

}  // namespace

Table load_config(const std::vector<std::string>& files, const std::vector<std::string>& sets) {
  Value config{Table{}, ""};
  for (const auto& file : files) merge(config, parse_file(file), 0);
  return with_sets(std::get<Table>(std::move(config.data)), sets);
}

Table with_sets(Table table, const std::vector<std::string>& sets) {
  Value config{std::move(table), ""};
  // Strategies first: their options may stand before them on the command line.
  auto in_order = sets;
  std::ranges::stable_partition(in_order, [](const std::string& set) {
    const auto key = set.substr(0, set.find('='));
    return key.ends_with(".use") || key.ends_with(".use ");
  });
  for (const auto& set : in_order) merge(config, parse_set(set), 0);
  return std::get<Table>(std::move(config.data));
}

Table parse_toml(const std::string& text, const std::string& where) {
  return std::get<Table>(convert(parse(text, where), "", where).data);
}

std::string to_toml(const Table& config) {
  std::ostringstream text;
  text << to_toml_table(config) << '\n';
  return text.str();
}

}  // namespace vernier
