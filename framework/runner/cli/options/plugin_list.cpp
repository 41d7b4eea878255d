#include "plugin_list.h"

#include <vernier/host.h>

#include <algorithm>
#include <iostream>

#include "wiring/wiring.h"

namespace vernier {

Options options_of(const Host& host, const std::string& id) {
  if (id == "run") return described_run("name of the first file");
  const auto slash = id.find('/');
  if (slash == std::string::npos)
    refuse("`vernier plugins " + shortened(id) + "`: write role/name, as in scaler/dynamic, or run");
  const std::string role = id.substr(0, slash), name = id.substr(slash + 1);
  if (std::ranges::none_of(host.list(), [&](const auto& plugin) { return plugin.role == role; })) {
    refuse("there is no role \"" + shortened(role) + "\"; `vernier plugins` lists all");
  }
  Options options(id, {}, "");
  HostApi::only_describe(options);
  (void)host.make(role, name, options);  // with no table at all, just to see what it reads
  return options;
}

void describe_plugin(const Host& host, const std::string& id) {
  const auto options = options_of(host, id);
  std::cout << id << (HostApi::declared(options).empty() ? ": no options\n" : "\n");
  for (const auto& option : HostApi::declared(options)) {
    const auto limits = option.limits_text();
    std::cout << "  " << option.key << " = " << option.fallback_text() << "   (" << option.type_text()
              << (limits.empty() ? "" : ": " + limits) << ")\n      " << option.meaning << '\n';
  }
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
