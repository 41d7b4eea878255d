// `vernier plugins`: what there is, and what each reads.
#pragma once

#include <string>

#include "host.h"

namespace vernier {

// Every plugin of the folders, by role.
void list_plugins(const Host& host);

// What the plugin "role/name" reads. Throws Error::Kind::configuration where there is none.
Options options_of(const Host& host, const std::string& id);

// Prints the options of one by "role/name", or of [run]. Throws Error::Kind::configuration where there is none.
void describe_plugin(const Host& host, const std::string& id);

}  // namespace vernier
