#include "plugin_list.h"

#include <vernier/error.h>
#include <vernier/roles.h>

#include <iostream>

#include "wiring/wiring.h"

namespace vernier {

namespace {

// Makes the plugin with no table at all, just to see what it reads.
template <class Role>
bool describe_as(const Host& host, const std::string& role, const std::string& name, Options& options) {
  if (role != Role::role) return false;
  host.make<Role>(name, options);
  return true;
}

void print_options(const std::string& id, const Options& options) {
  std::cout << id << (options.declared().empty() ? ": no options\n" : "\n");
  for (const auto& option : options.declared()) {
    std::cout << "  " << option.key << " = " << option.fallback << "   (" << option.type
              << (option.range.empty() ? "" : ": " + option.range) << ")\n      " << option.meaning << '\n';
  }
}

}  // namespace

Options options_of(const Host& host, const std::string& id) {
  if (id == "run") return described_run("name of the first file");
  const auto slash = id.find('/');
  if (slash == std::string::npos)
    refuse("`vernier plugins " + shortened(id) + "`: write role/name, as in scaler/dynamic, or run");
  const std::string role = id.substr(0, slash), name = id.substr(slash + 1);
  Options options(id, {}, "");
  options.only_describe();
  const bool known =
      describe_as<Task>(host, role, name, options) || describe_as<Precision>(host, role, name, options) ||
      describe_as<Scaler>(host, role, name, options) || describe_as<Accumulation>(host, role, name, options) ||
      describe_as<Optimizer>(host, role, name, options) || describe_as<Checkpoint>(host, role, name, options) ||
      describe_as<Distributed>(host, role, name, options) || describe_as<Callback>(host, role, name, options) ||
      describe_as<Monitor>(host, role, name, options);
  if (!known) refuse("there is no role \"" + shortened(role) + "\"; `vernier plugins` lists all");
  return options;
}

void describe_plugin(const Host& host, const std::string& id) {
  print_options(id, options_of(host, id));
}

void list_plugins(const Host& host) {
  std::string role;
  for (const auto& plugin : host.list()) {
    if (plugin.role != role) std::cout << (role = plugin.role) << '\n';
    std::cout << "  " << plugin.name << ' ' << plugin.version
              << (plugin.trouble.empty() ? "" : "  refused: " + plugin.trouble) << '\n';
  }
  std::cout << "`vernier plugins role/name` lists the options of one, `vernier plugins run` those of [run]\n";
}

}  // namespace vernier
