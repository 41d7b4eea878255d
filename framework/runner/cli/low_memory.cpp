#include "command.h"

#include <vernier/host.h>

#include "wiring/wiring.h"

namespace vernier::cli {

namespace {

// Makes a role's plugin. Throws Error if it refuses its options, or contradicts the optimizer or the precision.
Made tried(const Table& config, const Host& host, const std::string& role) {
  auto made = make(host, role, table_of(config, role));
  if (role == Task::role) return made;
  const auto other_role = role == Optimizer::role ? Precision::role : Optimizer::role;
  const auto other = make(host, other_role, table_of(config, other_role));
  Bus bus;
  HostApi::attach(bus, *made.plugin, /*monitor=*/false);
  HostApi::attach(bus, *other.plugin, /*monitor=*/false);
  const auto refuse_contradiction = [&bus](const Made& one, const Made& another) {
    const auto [option, reason] = one.plugin->contradicts(*another.plugin, bus);
    if (!option.empty()) one.options.refuse(option.c_str(), reason);
  };
  refuse_contradiction(made, other);
  refuse_contradiction(other, made);
  return made;
}

}  // namespace

Table with_low_memory(Table config, const Host& host) {
  for (const std::string role : {Accumulation::role, Task::role, Optimizer::role}) {
    const auto made = tried(config, host, role);
    for (const auto& [key, value, price] : HostApi::less_memory(made.options)) {
      auto changed = config;
      auto& table = std::get<Table>(changed.try_emplace(role, Value{Table{}, ""}).first->second.data);
      if (key == "use" ? !table.empty() : table.count(key) != 0) continue;
      table[key] = {value, "--low-memory"};
      try {
        tried(changed, host, role);
      } catch (const Error& error) {
        log(Level::info, "low-memory", "[" + role + "] stays as it is: " + error.what());
        continue;
      }
      log(Level::info, "low-memory", role + "." + key + " = \"" + value + "\": " + price);
      config = std::move(changed);
    }
  }
  return config;
}

}  // namespace vernier::cli
