#include "low_memory.h"

#include <vernier/error.h>
#include <vernier/plugin.h>

#include <algorithm>

#include "plugin_list.h"

namespace vernier {

namespace {

struct Lever {
  const char *role, *key, *value, *price;
};

constexpr Lever levers[] = {
    {"accumulation", "use", "fit",
     "micro-batches as large as fit, measured in the first step; layers that look across samples see a micro-batch"},
    {"task", "recompute", "full",
     "activations are computed again in backward, with the same bits: a step takes about a third longer"},
    {"optimizer", "state", "8bit",
     "a quarter of the optimizer's memory; the loss takes another course, close to the old one"},
};

// The role's table, made where there is none.
Table& table_of(Table& config, const char* role) {
  auto& value = config.try_emplace(role, Value{Table{}, ""}).first->second;
  auto* table = std::get_if<Table>(&value.data);
  if (table == nullptr) throw Error(value.where + ": [" + role + "] must be a table", Error::Kind::configuration);
  return *table;
}

// Returns the user's setting that a lever would contradict, or "" if there is none.
std::string hindrance(const Table& config, const std::string& role) {
  const auto is = [&](const char* of, const char* key, const auto& value) {
    const auto table = config.find(of);
    const auto* options = table == config.end() ? nullptr : std::get_if<Table>(&table->second.data);
    if (options == nullptr || options->count(key) == 0) return false;
    const auto* set = std::get_if<std::decay_t<decltype(value)>>(&options->at(key).data);
    return set != nullptr && *set == value;
  };
  if (role == "accumulation" && is("optimizer", "in_backward", true)) return "optimizer.in_backward";
  if (role == "optimizer" && is("optimizer", "amsgrad", true)) return "optimizer.amsgrad";
  if (role == "optimizer" && is("precision", "level", std::string("O3"))) return "precision.level O3";
  return "";
}

bool has_option(const Host& host, const std::string& role, const Table& table, const std::string& key) {
  const auto use = table.find("use");
  const auto* name = use == table.end() ? nullptr : std::get_if<std::string>(&use->second.data);
  if (name == nullptr) return false;
  const auto options = options_of(host, role + "/" + *name);
  return std::ranges::any_of(options.declared(), [&](const auto& option) { return option.key == key; });
}

}  // namespace

Table with_low_memory(Table config, const Host& host) {
  for (const auto& [role, key, value, price] : levers) {
    auto& table = table_of(config, role);
    const bool is_whole_role = std::string(key) == "use";
    if (table.count(key) != 0 || (is_whole_role && !table.empty())) continue;
    if (!is_whole_role && !has_option(host, role, table, key)) {
      log(Level::info, "low-memory", c10::str("[", role, "] has no `", key, "` and stays as it is"));
      continue;
    }
    if (const auto set = hindrance(config, role); !set.empty()) {
      log(Level::info, "low-memory",
          c10::str("[", role, "] stays as it is, for ", key, " = \"", value, "\" does not go with ", set));
      continue;
    }
    table[key] = {std::string(value), "--low-memory"};
    log(Level::info, "low-memory", c10::str(role, ".", key, " = \"", value, "\": ", price));
  }
  return config;
}

}  // namespace vernier
