// Turns a name in the TOML into a plugin, or refuses with a reason.
#pragma once

#include <vernier/abi.h>
#include <vernier/options.h>
#include <vernier/roles.h>

#include <filesystem>
#include <memory>
#include <string>
#include <vector>

namespace vernier {

// Reads the descriptor from the ELF file without opening the library. Throws Error::Kind::plugin naming the file where
// there is none, or where it was built for another Vernier or LibTorch.
Descriptor read_descriptor(const std::filesystem::path& file);

class Host {
 public:
  // Folders that hold <role>/<name>.so, searched in order.
  explicit Host(std::vector<std::filesystem::path> folders) : folders_(std::move(folders)) {}

  // `name`: a plugin of that role, or a file where it has a slash. Checks the file, opens it (it stays open for good),
  // constructs the plugin from its options, and refuses keys that it did not read.
  template <class Role>
  std::unique_ptr<Role> make(const std::string& name, Options& options) const {
    // The role is equal by name, so the object is a Role: the descriptor was made by VERNIER_PLUGIN from Class::role.
    return std::unique_ptr<Role>(static_cast<Role*>(make(Role::role, name, options).release()));
  }

  // The same for a role by its name.
  std::unique_ptr<Plugin> make(const std::string& role, const std::string& name, Options& options) const;

  // Where the plugin of this name is; throws naming the nearest right one.
  std::filesystem::path find(const std::string& role, const std::string& name) const;

  // Every plugin in the folders, by reading files only: "role/name", sorted.
  struct Listed {
    std::string role, name, version, trouble;  // trouble: why it cannot be used, or empty
    std::filesystem::path file;
  };
  std::vector<Listed> list() const;

 private:
  std::vector<std::filesystem::path> folders_;
};

}  // namespace vernier
