// Finds, checks, opens and constructs plugins by their names.
#pragma once

#include <vernier/roles.h>

#include "plugin_file.h"

namespace vernier {

// The checksum of the library that a plugin was made from, by id, "callback/mine"; "" for an object of the program.
std::string build_of(const std::string& id);

class Host {
 public:
  // folders: they have files <role>/<name>.so, and are searched in this order.
  explicit Host(std::vector<std::filesystem::path> folders) : folders_(std::move(folders)) {}

  // name: a plugin of that role, or a file if it contains a slash. Checks the file and opens it for the rest of the
  // process. Then constructs the plugin from its options, and refuses keys that it did not read.
  // VERNIER_PLUGIN takes the descriptor's role from Class::role, and make() compares it, so it is an object of the
  // role's class. sha256: if not empty, the digest that the file must have, in lower-case digits.
  std::unique_ptr<Plugin> make(const std::string& role, const std::string& name, Options& options,
                               const std::string& sha256 = "") const;

  // Lists every plugin in the folders by reading the files only, sorted by "role/name".
  struct Listed {
    std::string role, name, version, trouble;  // trouble: why it cannot be used, or ""
    std::filesystem::path file;
  };
  std::vector<Listed> list() const;

 private:
  struct Place {
    std::filesystem::path file, folder;  // folder: of the plugin path; "" for a file that the user named
  };
  // Throws Error, with the nearest right name, if there is no such plugin.
  Place find(const std::string& role, const std::string& name) const;
  std::vector<std::filesystem::path> folders_;
};

}  // namespace vernier
