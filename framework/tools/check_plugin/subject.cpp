#include "subject.h"

#include <vernier/error.h>

#include <algorithm>
#include <filesystem>

namespace vernier {

namespace {

bool is_list(const std::string& role) {
  return role == Callback::role || role == Monitor::role;
}

Table& table_in(Table& config, const std::string& key) {
  auto& value = config.try_emplace(key, Value{Table{}, "check"}).first->second;
  if (auto* table = std::get_if<Table>(&value.data)) return *table;
  refuse(value.where + ": [" + key + "] must be a table");
}

Array& list_in(Table& config, const std::string& role) {
  auto& value = config.try_emplace(role, Value{Array{}, "check"}).first->second;
  if (auto* list = std::get_if<Array>(&value.data)) return *list;
  refuse(value.where + ": there may be several of these: write [[" + role + "]], not [" + role + "]");
}

// A name, or the path of a library of this name.
bool names(const Value& table, const std::string& name) {
  return std::filesystem::path(use_of(table)).stem() == name;
}

// Writes the table wherever an operand is given to the quantizer of this name. Returns whether one is.
bool put_into(Table& operands, const std::string& name, const Value& table) {
  bool is_there = false;
  for (auto& [key, value] : operands) {
    auto* inner = std::get_if<Table>(&value.data);
    const auto* text = std::get_if<std::string>(&value.data);
    const bool is_own =
        text != nullptr ? *text == name : inner != nullptr && inner->contains("use") && names(value, name);
    if (is_own) {
      Table own = std::get<Table>(table.data);
      if (inner != nullptr) own.insert(inner->begin(), inner->end());
      value.data = std::move(own);
    }
    is_there |= is_own || (inner != nullptr && put_into(*inner, name, table));
  }
  return is_there;
}

Table take(const Value& table) {
  auto options = std::get<Table>(table.data);
  options.erase("use");
  return options;
}

}  // namespace

Table Subject::config() const {
  Table config = base, own = options;
  own.insert_or_assign("use", Value{use, "check"});
  Value table{std::move(own), "check"};
  if (is_quantizer()) {
    auto& precision = table_in(config, Precision::role);
    precision.insert_or_assign("use", Value{"format", "check"});
    auto& operands = table_in(precision, "operands");
    if (!put_into(operands, name, table)) operands = {{"x", table}, {"w", table}, {"g", table}};
    return config;
  }
  if (is_list(role)) {
    list_in(config, role).push_back(std::move(table));
  } else {
    config.insert_or_assign(role, std::move(table));
  }
  return config;
}

Table Subject::config_without() const {
  Table config = base;
  if (is_list(role)) return config;
  config.erase(role_in_run());
  const auto small = small_base();
  if (role == Task::role || role == Optimizer::role) config.insert_or_assign(role, small.at(role));
  return config;
}

Table small_base() {
  return parse_toml(R"(
[run]
name = "check"
steps = 20
validate_every = 5
device = "cpu"
threads = 1
[task]
use = "mlp"
samples = 64
dropout = 0.1
batch_norm = true
[scaler]
use = "dynamic"
growth_interval = 3
[optimizer]
use = "adamw"
)",
                    "check");
}

bool is_small(const Subject& subject) {
  const auto task = subject.base.find(Task::role);
  return task != subject.base.end() && use_of(task->second) == "mlp";
}

void change(Subject& subject, const std::vector<std::string>& sets) {
  const auto own_table = subject.role + (is_list(subject.role) ? "." + subject.name : "") + ".";
  auto small = small_base();
  std::vector<std::string> of_plugin, of_run;
  for (const auto& set : sets) {
    const auto equals = set.find('=');
    auto key = set.substr(0, equals);
    key.erase(key.find_last_not_of(' ') + 1);
    const bool needs_table = equals != std::string::npos && !key.empty() && key.find('.') == std::string::npos;
    const auto whole = needs_table ? own_table + key : key;
    const bool is_chosen = whole.starts_with("run.") && table_in(small, "run").contains(whole.substr(4));
    if (is_chosen || whole == own_table + "use") refuse("--set " + whole + ": the check chooses it; leave it out");
    auto& part = whole.starts_with(own_table) ? of_plugin : of_run;
    part.push_back(needs_table ? own_table + set : set);
  }
  const auto changed = with_sets({}, of_plugin);
  if (const auto found = changed.find(subject.role); found != changed.end()) {
    const auto& table = is_list(subject.role) ? std::get<Array>(found->second.data).front() : found->second;
    for (const auto& [key, value] : take(table)) subject.options.insert_or_assign(key, value);
  }
  subject.base = with_sets(std::move(subject.base), of_run);
}

Table base_of_file(const std::string& file, const std::string& role, const std::string& name, Table& options) {
  Table base = load_config({file}, {});
  auto& run = table_in(base, "run");
  auto small = small_base();
  for (const auto& [key, value] : table_in(small, "run")) run.insert_or_assign(key, value);
  run.erase("epochs");
  if (base.count(role) == 0) return base;
  if (!is_list(role)) {
    if (names(base.at(role), name)) options = take(base.at(role));
    base.erase(role);
    return base;
  }
  auto& list = list_in(base, role);
  const auto own = std::ranges::find_if(list, [&](const Value& table) { return names(table, name); });
  if (own == list.end()) return base;
  options = take(*own);
  list.erase(own);
  return base;
}

}  // namespace vernier
