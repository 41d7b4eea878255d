// `vernier plugins`: lists the plugins, and the options that each reads.
#pragma once

#include <string>

#include "wiring/host.h"

namespace vernier {

// Prints every plugin of the host's folders, by role.
void list_plugins(const Host& host);

// Returns the options of the plugin "role/name", or of [run] for "run". Throws Error::Kind::configuration for others.
Options options_of(const Host& host, const std::string& id);

// Prints the options of the plugin "role/name", or of [run]. Throws Error::Kind::configuration if there is none.
void describe_plugin(const Host& host, const std::string& id);

}  // namespace vernier
