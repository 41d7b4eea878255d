// A built plugin, opened and made as the host does it but without the host's checks.
#pragma once

#include <dlfcn.h>
#include <vernier/host.h>
#include <vernier/options.h>
#include <vernier/plugin.h>

#include <filesystem>
#include <memory>
#include <stdexcept>
#include <string>

// role_name: "checkpoint/rolling".
inline const vernier::Descriptor& descriptor_of(const std::string& role_name) {
  const auto path = std::filesystem::path(VERNIER_BINARY_DIR) / "plugins" / (role_name + ".so");
  void* library = ::dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) throw std::runtime_error(::dlerror());
  return *static_cast<const vernier::Descriptor*>(::dlsym(library, "vernier_plugin"));
}

template <class Role>
std::unique_ptr<Role> make_plugin(const std::string& role_name, vernier::Table table = {}) {
  vernier::Options options(role_name, std::move(table), "test.toml:1");
  std::unique_ptr<Role> plugin(static_cast<Role*>(descriptor_of(role_name).create(options)));
  vernier::HostApi::refuse_unread(options);
  vernier::HostApi::set_id(*plugin, role_name);
  return plugin;
}
