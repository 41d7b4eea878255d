#include "config.h"

#include <toml++/toml.h>
#include <vernier/callback.h>
#include <vernier/data_file.h>
#include <vernier/error.h>
#include <vernier/missing_file.h>
#include <vernier/plugin.h>

#include <algorithm>
#include <filesystem>
#include <set>
#include <sstream>

#include "common/toml_depth.h"
#include "core/reworded_error.h"
#include "references.h"

namespace vernier {

namespace {

constexpr std::size_t longest_toml = 1 << 20;  // bytes
constexpr std::size_t deepest_include = 16;

[[noreturn]] void refuse_depth(const std::string& where) {
  refuse(where + ": tables and lists are in each other deeper than " + std::to_string(deepest_toml) +
         " levels; no option needs that");
}

void refuse_length(const std::string& where, const std::string& text) {
  if (text.size() <= longest_toml) return;
  refuse(where + ": has " + std::to_string(text.size()) + " bytes; at most " + std::to_string(longest_toml) +
         " are read");
}

// Returns what is wrong with a line such as `[scaler] use = "dynamic", init_scale = 8`, in which messages name options.
std::string remedy_for(const std::string& text, std::size_t line) {
  std::istringstream lines(text);
  std::string here;
  for (std::size_t i = 0; i < line; ++i) std::getline(lines, here);
  const auto has_key_after = [&](char mark) { return here.find('=', here.find(mark)) != std::string::npos; };
  const bool is_joined = here.starts_with('[') && has_key_after(']');
  const bool has_two = here.find('{') == std::string::npos && has_key_after(',');
  return is_joined || has_two ? "; a table's name has a line of its own, and so has each key below it" : "";
}

// toml++ parses by recursion, so a text that nests too deep is refused before it is parsed.
toml::table parse(const std::string& text, const std::string& file) {
  if (const int line = line_too_deep(text); line > 0) refuse_depth(file + ":" + std::to_string(line));
  try {
    return toml::parse(text, file);
  } catch (const toml::parse_error& error) {
    const auto line = error.source().begin.line;
    const bool is_other = !file.ends_with(".toml") && !file.empty();
    refuse(file + (line != 0 ? ":" + std::to_string(line) + ": " : ": ") +
           reworded_error(std::string(error.description())) + remedy_for(text, line) +
           (is_other ? "; if it is data, `vernier new toml " + file + "` writes a TOML file for it" : ""));
  }
}

void refuse_nul(const std::string& text, const std::string& where) {
  if (text.find('\0') == std::string::npos) return;
  refuse(where + ": the text \"" + shortened(text) + "\" has a NUL character (\\u0000), which none may have");
}

// Converts a node of toml++. fixed_where: the place of all its values; if it is empty, each has the file and its line.
Value convert(const toml::node& node, const std::string& file, const std::string& fixed_where) {
  Value value{{}, fixed_where.empty() ? file + ":" + std::to_string(node.source().begin.line) : fixed_where};
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

// Returns true if the entry says `remove = true`. Takes a `remove = false` out of it.
bool is_removal(Value& entry) {
  auto& table = std::get<Table>(entry.data);
  const auto remove = table.find("remove");
  if (remove == table.end()) return false;
  if (!std::holds_alternative<bool>(remove->second.data)) {
    refuse(remove->second.where + ": `remove` must be true or false");
  }
  const bool removes = std::get<bool>(remove->second.data);
  if (!removes) table.erase(remove);
  return removes;
}

// Removes those of this `use` from the first `written_before` entries. Returns how many of these are left.
std::size_t remove_entries(Array& entries, std::size_t written_before, const Value& removal, const std::string& list) {
  const auto use = use_of(removal);
  const auto& where = std::get<Table>(removal.data).at("remove").where;
  const auto end = entries.begin() + static_cast<std::ptrdiff_t>(written_before);
  std::vector<std::string> names;
  for (auto entry = entries.begin(); entry != end; ++entry) names.push_back(use_of(*entry));
  if (use.empty() || std::ranges::find(names, use) == names.end()) {
    const auto near = nearest(use, names);
    refuse(where + ": there is no [[" + list + "]] use = \"" + shortened(use) + "\" to remove" +
           (near.empty() ? "; a file before this one must have it" : "; did you mean \"" + near + "\"?"));
  }
  if (std::get<Table>(removal.data).size() != 2) {
    refuse(where + ": `remove = true` stands with `use` alone; take the other options out");
  }
  const auto kept = std::remove_if(entries.begin(), end, [&](const Value& entry) { return use_of(entry) == use; });
  const auto left = static_cast<std::size_t>(kept - entries.begin());
  entries.erase(kept, end);
  return left;
}

// Returns the entries of [[callback]] or [[monitor]], and refuses [callback].
Array& entries_of(Value& value, const std::string& list) {
  if (auto* entries = std::get_if<Array>(&value.data)) return *entries;
  refuse(value.where + ": there may be several of these: write [[" + list + "]], not [" + list + "]");
}

void merge(Value& into, Value from, int depth);

// Callbacks or monitors. The first entry of a `use` is merged into the first earlier one of this `use`, the second into
// the second. Those of one file are not matched with each other. An empty list removes all.
void merge_entries(Value& into, Value from, const std::string& list) {
  auto &entries = entries_of(into, list), &added = entries_of(from, list);
  if (added.empty()) entries.clear();
  auto written_before = entries.size();
  std::map<std::string, std::ptrdiff_t> matched;  // for each `use`: how many of its earlier entries are taken
  for (auto& entry : added) {
    if (std::holds_alternative<Table>(entry.data) && is_removal(entry)) {
      written_before = remove_entries(entries, written_before, entry, list);
      matched.erase(use_of(entry));
      continue;
    }
    const auto end = entries.begin() + static_cast<std::ptrdiff_t>(written_before);
    auto passed = matched[use_of(entry)]++;
    const auto same = std::find_if(entries.begin(), end,
                                   [&](const Value& other) { return use_of(other) == use_of(entry) && passed-- == 0; });
    if (same != end) {
      merge(*same, std::move(entry), 2);
    } else {
      entries.push_back(std::move(entry));
    }
  }
}

// Returns true for the tables of which there may be several.
bool is_of_list(const std::string& role) {
  return role == Callback::role || role == Monitor::role;
}

// Callbacks and monitors, the lists at depth 0, are merged one by one; any other list is a value, which is replaced.
void merge(Value& into, Value from, int depth) {
  auto* table = std::get_if<Table>(&into.data);
  auto* other = std::get_if<Table>(&from.data);
  if (table == nullptr || other == nullptr ||
      (!use_of(from).empty() && !use_of(into).empty() && use_of(from) != use_of(into))) {
    into = std::move(from);
    return;
  }
  for (auto& [key, value] : *other) {
    const auto found = table->find(key);
    if (depth == 0 && is_of_list(key)) {
      auto& entries = table->try_emplace(key, Value{Array{}, value.where}).first->second;
      merge_entries(entries, std::move(value), key);
    } else if (found == table->end()) {
      table->emplace(key, std::move(value));
    } else {
      merge(found->second, std::move(value), depth + 1);
    }
  }
}

// from: the place of the include, or "".
Value parse_file(const std::string& file, const std::string& from) {
  const auto place = from.empty() ? file : from + ": include: " + file;
  std::error_code none;
  if (!std::filesystem::exists(file, none)) {
    const auto hint = missing_file_hint(file);
    const bool is_set = from.empty() && file.find('=') != std::string::npos;
    const bool is_near = hint.find("did you mean") != std::string::npos;
    const std::string remedy = is_set ? "; if it is part of --set, the shell cut it: write --set 'KEY=VALUE' in quotes"
                               : is_near      ? hint
                               : from.empty() ? "; name the TOML file of a run"
                                              : "";
    refuse(place + ": there is no such file" + remedy);
  }
  if (std::filesystem::is_directory(file, none)) {
    refuse(place + ": is a folder, not a TOML file" +
           (from.empty() ? "; to resume a run, write --resume=" + file : ""));
  }
  return convert(parse(read_data_file(file, longest_toml), file), file, "");
}

Value parse_text(const std::string& text) {
  const std::string name = "TOML text";
  refuse_length(name, text);
  Value parsed = convert(parse(text, name), name, "");
  const auto& table = std::get<Table>(parsed.data);
  if (const auto include = table.find("include"); include != table.end()) {
    refuse(include->second.where + ": `include` is for files only; name the file beside the text");
  }
  return parsed;
}

// Returns a list or table that has lost its quotes with them again, as TOML, or "" where that is none.
std::string with_quotes(const std::string& text) {
  std::string whole;
  for (std::size_t at = 0; at < text.size();) {
    const auto end = std::min(text.find_first_of("[]{},=", at), text.size());
    auto word = text.substr(at, end - at);
    const auto first = word.find_first_not_of(' '), last = word.find_last_not_of(" ");
    word = first == word.npos ? "" : word.substr(first, last + 1 - first);
    const bool is_key = end < text.size() && text[end] == '=';
    const bool is_text = !word.empty() && !is_key && std::holds_alternative<std::string>(parse_value(word, "").data);
    const bool is_quoted = word.starts_with('"') || word.starts_with('\'');
    whole += is_text && !is_quoted ? '"' + word + '"' : word;
    if (end < text.size()) whole += text[end] == '=' ? " = " : text[end] == ',' ? ", " : std::string(1, text[end]);
    at = end + 1;
  }
  const bool is_toml = !std::holds_alternative<std::string>(parse_value(whole, "").data);
  return is_toml && whole.find('\'') == whole.npos ? whole : "";
}

// Takes `include` out of a file's table. Returns the files as they are written, and their places.
std::vector<std::pair<std::string, std::string>> take_includes(Table& table) {
  const auto node = table.extract("include");
  if (node.empty()) return {};
  const Value include = expanded({{"include", node.mapped()}}).at("include");
  const auto* list = std::get_if<Array>(&include.data);
  std::vector<std::pair<std::string, std::string>> files;
  for (const auto& each : list == nullptr ? Array{include} : *list) {
    const auto* file = std::get_if<std::string>(&each.data);
    if (file == nullptr || file->empty()) {
      refuse(each.where + ": `include` must be a file or a list of files, as include = [\"base.toml\"]");
    }
    files.emplace_back(*file, each.where);
  }
  return files;
}

// Merges files, and before each of them those that it includes.
class MergedFiles {
 public:
  explicit MergedFiles(const std::vector<std::string>& files) {
    for (const auto& file : files) add(file, "");
  }
  void add_text(const std::string& text) { merge(config_, parse_text(text), 0); }
  Value take() { return std::move(config_); }

 private:
  // from: the place of the include, or "" for a file that the user names.
  void add(const std::string& file, const std::string& from) {
    std::error_code none;
    const auto path = std::filesystem::weakly_canonical(file, none);
    if (!from.empty() && merged_.count(path) != 0) return;
    const auto begin = std::ranges::find(open_, path, &Open::path);
    if (begin != open_.end()) {
      std::string chain;
      for (auto each = begin; each != open_.end(); ++each) chain += each->file + " -> ";
      refuse(from + ": include: " + file + " includes itself: " + shortened(chain + file, 400));
    }
    if (open_.size() > deepest_include) {
      refuse(from + ": include: " + file + ": files include each other deeper than " + std::to_string(deepest_include) +
             " levels");
    }
    auto parsed = parse_file(file, from);
    open_.push_back({path, file});
    for (const auto& [included, where] : take_includes(std::get<Table>(parsed.data))) {
      add((std::filesystem::path(file).parent_path() / included).string(), where);
    }
    open_.pop_back();
    merged_.insert(path);
    merge(config_, std::move(parsed), 0);
  }

  struct Open {
    std::filesystem::path path;
    std::string file;  // the path in messages
  };
  Value config_{Table{}, ""};
  std::set<std::filesystem::path> merged_;
  std::vector<Open> open_;  // each is included by the one before it
};

Value parse_set(const std::string& set) {
  const auto equals = set.find('=');
  const std::string key = set.substr(0, set.find_last_not_of(' ', equals == 0 ? 0 : equals - 1) + 1);
  if (key.find_first_of("\"'") != std::string::npos) {
    refuse("--set " + shortened(set) + ": a key in quotes can be set in a file only");
  }
  const bool has_empty_part =
      key.empty() || key.front() == '.' || key.back() == '.' || key.find("..") != std::string::npos;
  if (equals == std::string::npos || equals == 0 || has_empty_part) {
    refuse("--set " + shortened(set) + ": write --set key=value, as --set run.steps=100");
  }
  const std::string where = "--set " + shortened(key);
  if (std::ranges::count(key, '.') >= deepest_toml) refuse_depth(where);
  if (key == "include") refuse(where + ": is for files only; name the file before --set");
  refuse_length(where, set);
  Value value = parse_value(set.substr(equals + 1), where);
  if (const auto* word = std::get_if<std::string>(&value.data);
      word != nullptr && !word->empty() && set[equals + 1] == word->front()) {
    if (word->starts_with('[') || word->starts_with('{')) {  // texts of TOML begin with a quote
      const auto whole = with_quotes(*word);
      refuse(where + ": " + shortened(*word) + " is not TOML; if the shell took its quotes, write --set '" + key + "=" +
             (whole.empty() ? "[\"first\", \"second\"]" : whole) + "'");
    }
  }
  // From the innermost key outwards: a.b.c = v becomes {a: {b: {c: v}}}.
  std::vector<std::string> keys;
  std::stringstream parts(key);
  for (std::string part; std::getline(parts, part, '.');) keys.push_back(part);
  const bool is_list = is_of_list(keys.front());
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

// Returns the place of a value that --set gave, or "".
std::string set_in(const Value& value) {
  if (value.where.starts_with("--set ")) return value.where;
  std::string found;
  if (const auto* table = std::get_if<Table>(&value.data)) {
    for (const auto& [key, child] : *table) found = found.empty() ? set_in(child) : found;
  } else if (const auto* list = std::get_if<Array>(&value.data)) {
    for (const auto& child : *list) found = found.empty() ? set_in(child) : found;
  }
  return found;
}

}  // namespace

std::string use_of(const Value& value) {
  const auto* table = std::get_if<Table>(&value.data);
  if (table == nullptr || table->count("use") == 0) return "";
  const auto* use = std::get_if<std::string>(&table->at("use").data);
  return use == nullptr ? "" : *use;
}

bool is_list_of_tables(const Value& value) {
  const auto* list = std::get_if<Array>(&value.data);
  return list != nullptr && !list->empty() &&
         std::ranges::all_of(*list, [](const Value& each) { return std::holds_alternative<Table>(each.data); });
}

Value parse_value(const std::string& text, const std::string& where) {
  const auto first = text.find_first_not_of(" \t");
  // Only values that start with [ or { can nest; dots in a path do not count.
  const bool may_nest = first != std::string::npos && (text[first] == '[' || text[first] == '{');
  if ((may_nest || text.find('\n') != std::string::npos) && line_too_deep("value = " + text) > 0) refuse_depth(where);
  try {
    return convert(*toml::parse("value = " + text).get("value"), "", where);
  } catch (const toml::parse_error&) {  // a word without quotes, as people write it for --set
    return {first == std::string::npos ? text : text.substr(first, text.find_last_not_of(" \t") + 1 - first), where};
  }
}

Table merge_sets(Table config, const std::vector<std::string>& sets) {
  // `use` is set first, because a plugin's options may stand before its name on the command line.
  auto in_order = sets;
  std::ranges::stable_partition(in_order, [](const std::string& set) {
    const auto key = set.substr(0, set.find('='));
    return key.ends_with(".use") || key.ends_with(".use ");
  });
  std::map<std::string, std::string> given;
  for (const auto& set : sets) {
    auto key = set.substr(0, set.find('='));
    key.erase(std::ranges::find(key, ' '), key.end());
    const auto [before, is_first] = given.try_emplace(key, set);
    if (!is_first && std::exchange(before->second, set) != set) {
      log(Level::warning, "--set", key + " is given twice, and the last holds: " + shortened(set));
    }
  }
  Value merged{std::move(config), ""};
  for (const auto& set : in_order) merge(merged, parse_set(set), 0);
  return std::get<Table>(std::move(merged.data));
}

Table merge_config(const std::vector<std::string>& files, const std::vector<std::string>& sets,
                   const std::string& text) {
  MergedFiles merged(files);
  merged.add_text(text);
  return merge_sets(std::get<Table>(merged.take().data), sets);
}

void leave_out(Table& config, const std::string& role) {
  const auto table = config.extract(role);
  const auto set = table.empty() ? "" : set_in(table.mapped());
  if (!set.empty()) refuse(set + ": has no effect here, where no plugin of the role " + role + " runs; leave it out");
}

bool is_same(const Value& a, const Value& b) {
  return to_toml({{"value", a}}) == to_toml({{"value", b}});
}

Table parse_toml(const std::string& text, const std::string& where) {
  return unescaped(std::get<Table>(convert(parse(text, where), "", where).data));
}

}  // namespace vernier
