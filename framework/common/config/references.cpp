#include "references.h"

#include <c10/util/StringUtil.h>
#include <unistd.h>
#include <vernier/error.h>
#include <vernier/options.h>

#include <algorithm>
#include <cstdlib>
#include <optional>
#include <sstream>

#include "common/text/numbers.h"
#include "config.h"

namespace vernier {

namespace {

constexpr std::size_t deepest_reference = 64;      // the most values that a reference may lead through
constexpr std::size_t most_referred_to = 1 << 20;  // the most bytes that all references may add

struct Reference {
  std::string name;
  std::optional<std::string> fallback;  // the text behind ":-"
  std::size_t end = 0;                  // behind its }
  bool is_path() const { return name.find('.') != std::string::npos; }
};

// Reads the reference whose ${ is at `begin`.
Reference read_reference(const std::string& text, std::size_t begin, const std::string& where) {
  int open = 0;
  std::size_t i = begin + 1;
  for (; i < text.size(); ++i) {
    if (text[i] == '{') ++open;  // also that of {name} in a fallback
    if (text[i] == '}' && --open == 0) break;
  }
  if (i >= text.size()) {
    refuse(where + ": the text \"" + shortened(text) + "\" has a ${ without its }; write $${ for the characters ${");
  }
  const auto body = text.substr(begin + 2, i - begin - 2);
  const auto colon = body.find(":-");
  Reference reference{body.substr(0, colon), {}, i + 1};
  if (colon != std::string::npos) reference.fallback = body.substr(colon + 2);
  if (reference.name.empty()) {
    refuse(where + ": ${" + shortened(body) + "} names nothing; write ${NAME} for an environment variable, " +
           "${run.name} for a value, $${ for the characters ${");
  }
  return reference;
}

// Returns the value at a path, or nullptr. In a list of plugins, a key names the first entry with this `use`.
const Value* find_value(const Table& config, const std::string& path) {
  const Table* table = &config;
  const Value* found = nullptr;
  std::stringstream keys(path);
  for (std::string key; std::getline(keys, key, '.');) {
    if (const auto* list = found == nullptr ? nullptr : std::get_if<Array>(&found->data)) {
      found = nullptr;
      for (const auto& entry : *list) {
        if (found == nullptr && use_of(entry) == key) found = &entry;
      }
    } else {
      const auto place = table == nullptr ? Table::const_iterator{} : table->find(key);
      found = table == nullptr || place == table->end() ? nullptr : &place->second;
    }
    if (found == nullptr) return nullptr;
    table = std::get_if<Table>(&found->data);
  }
  return found;
}

// Adds the paths of all values that a reference may name, for hints.
void add_paths(const Table& table, const std::string& before, std::vector<std::string>& paths) {
  for (const auto& [key, value] : table) {
    if (const auto* inner = std::get_if<Table>(&value.data)) {
      add_paths(*inner, before + key + ".", paths);
    } else if (const auto* list = std::get_if<Array>(&value.data); list != nullptr && before.empty()) {
      for (const auto& entry : *list) {
        if (!use_of(entry).empty()) add_paths(std::get<Table>(entry.data), key + "." + use_of(entry) + ".", paths);
      }
    } else {
      paths.push_back(before + key);
    }
  }
}

std::vector<std::string> environment_names() {
  std::vector<std::string> names;
  for (char** entry = environ; entry != nullptr && *entry != nullptr; ++entry) {
    const std::string text = *entry;
    names.push_back(text.substr(0, text.find('=')));
  }
  return names;
}

bool is_plain(const Value& value) {
  return !std::holds_alternative<Table>(value.data) && !std::holds_alternative<Array>(value.data);
}

std::size_t size_in_bytes(const Value& value) {
  std::size_t size = 8;
  if (const auto* text = std::get_if<std::string>(&value.data)) size += text->size();
  if (const auto* list = std::get_if<Array>(&value.data)) {
    for (const auto& each : *list) size += size_in_bytes(each);
  }
  return size;
}

class Expansion {
 public:
  Expansion(const Table& config, const Table& defaults) : config_(config), defaults_(defaults) {}

  Value expand(const Value& value) {
    Value made = value;
    if (const auto* text = std::get_if<std::string>(&value.data)) return expand_text(*text, value.where);
    if (auto* table = std::get_if<Table>(&made.data)) {
      for (auto& [key, child] : *table) child = expand(child);
    } else if (auto* list = std::get_if<Array>(&made.data)) {
      for (auto& child : *list) child = expand(child);
    }
    return made;
  }

 private:
  Value expand_text(const std::string& text, const std::string& where) {
    if (depth_ >= deepest_reference) {
      refuse(where + ": the references in \"" + shortened(text) + "\" lead through more than " +
             std::to_string(deepest_reference) + " values; name the last one directly");
    }
    ++depth_;
    Value made{std::string(), where};
    auto& so_far = std::get<std::string>(made.data);
    for (std::size_t at = 0; at < text.size();) {
      if (text.compare(at, 3, "$${") == 0) {
        so_far += "${";
        at += 3;
      } else if (text.compare(at, 2, "${") == 0) {
        const auto reference = read_reference(text, at, where);
        Value value = value_of(reference, where);
        if (at == 0 && reference.end == text.size()) {
          made.data = std::move(value.data);
          break;
        }
        so_far += as_text(value, reference, where);
        at = reference.end;
      } else {
        so_far += text[at++];
      }
    }
    --depth_;
    return made;
  }

  Value value_of(const Reference& reference, const std::string& where) {
    auto value = reference.is_path() ? at_path(reference, where) : variable(reference, where);
    const auto* text = value ? std::get_if<std::string>(&value->data) : nullptr;
    if ((!value || (text != nullptr && text->empty())) && reference.fallback) {
      value = expand_text(*reference.fallback, where);
      text = std::get_if<std::string>(&value->data);
      if (reference.is_path() && text != nullptr) value = parse_value(std::string(*text), where);
    }
    if (!value) refuse_unknown(reference, where);
    spent_ += size_in_bytes(*value);
    if (spent_ > most_referred_to) {
      refuse(where + ": the values that references stand for have more than " + std::to_string(most_referred_to) +
             " bytes by here");
    }
    return *std::move(value);
  }

  static std::optional<Value> variable(const Reference& reference, const std::string& where) {
    const char* text = std::getenv(reference.name.c_str());
    return text == nullptr ? std::nullopt : std::optional(Value{std::string(text), where});
  }

  std::optional<Value> at_path(const Reference& reference, const std::string& where) {
    const auto& path = reference.name;
    const auto* found = find_value(config_, path);
    if (found == nullptr) found = find_value(defaults_, path);
    if (found == nullptr) return std::nullopt;
    if (std::ranges::find(open_, path) != open_.end()) {
      std::string chain;
      for (const auto& each : open_) chain += each + " -> ";
      refuse(where + ": ${" + path + "} refers to itself: " + shortened(chain + path, 400));
    }
    if (std::holds_alternative<Table>(found->data)) {
      refuse(where + ": ${" + shortened(path) + "} is a table; refer to a value in it");
    }
    open_.push_back(path);
    auto value = expand(*found);
    open_.pop_back();
    const auto* list = std::get_if<Array>(&value.data);
    if (list != nullptr && !std::ranges::all_of(*list, is_plain)) {
      refuse(where + ": ${" + shortened(path) + "} is a list of lists or tables; write it out");
    }
    value.where = where;
    return value;
  }

  static std::string as_text(const Value& value, const Reference& reference, const std::string& where) {
    if (const auto* text = std::get_if<std::string>(&value.data)) return *text;
    if (const auto* flag = std::get_if<bool>(&value.data)) return *flag ? "true" : "false";
    if (const auto* integer = std::get_if<std::int64_t>(&value.data)) return std::to_string(*integer);
    if (const auto* real = std::get_if<double>(&value.data)) return shortest_number(*real);
    refuse(where + ": ${" + shortened(reference.name) + "} is a list, which cannot be a part of a text");
  }

  [[noreturn]] void refuse_unknown(const Reference& reference, const std::string& where) const {
    std::vector<std::string> names;
    if (reference.is_path()) {
      add_paths(config_, "", names);
      add_paths(defaults_, "", names);
    } else {
      names = environment_names();
    }
    const auto near = nearest(reference.name, names);
    const auto name = shortened(reference.name);
    refuse(where + ": ${" + name +
           "}: " + (reference.is_path() ? "the configuration has no value " : "there is no environment variable ") +
           name + (near.empty() ? "; set it, or write ${" + name + ":-default}" : "; did you mean ${" + near + "}?"));
  }

  const Table &config_, &defaults_;
  std::vector<std::string> open_;  // the paths whose values are being expanded
  std::size_t depth_ = 0, spent_ = 0;
};

// Calls change(text) for every string in a value.
template <class Change>
void for_each_string(Value& value, const Change& change) {
  if (auto* table = std::get_if<Table>(&value.data)) {
    for (auto& [key, child] : *table) for_each_string(child, change);
  } else if (auto* list = std::get_if<Array>(&value.data)) {
    for (auto& child : *list) for_each_string(child, change);
  } else if (auto* text = std::get_if<std::string>(&value.data)) {
    change(*text);
  }
}

Table with_replaced(Table config, const char* from, const char* to) {
  for (auto& [key, value] : config) for_each_string(value, [&](auto& text) { c10::ReplaceAll(text, from, to); });
  return config;
}

}  // namespace

Table expanded(const Table& config, const Table& defaults) {
  auto all = Expansion(config, defaults).expand({config, ""});
  // A shell expands "~/data.csv" neither in a file nor in --set KEY=~/data.csv.
  if (const char* home = std::getenv("HOME"); home != nullptr && *home != '\0') {
    for_each_string(all, [&](auto& text) {
      if (text.starts_with("~/")) text.replace(0, 1, home);
    });
  }
  return std::get<Table>(std::move(all.data));
}

Table escaped(Table config) {
  return with_replaced(std::move(config), "${", "$${");
}

Table unescaped(Table config) {
  return with_replaced(std::move(config), "$${", "${");
}

}  // namespace vernier
