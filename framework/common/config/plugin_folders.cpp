#include "plugin_folders.h"

#include <dlfcn.h>
#include <link.h>
#include <vernier/error.h>
#include <vernier/plugin.h>

#include <algorithm>
#include <boost/dll/runtime_symbol_info.hpp>
#include <cstdlib>
#include <set>
#include <sstream>

namespace vernier {

namespace fs = std::filesystem;

namespace {

std::vector<fs::path> folders_in(const char* variable) {
  std::vector<fs::path> folders;
  const char* path = std::getenv(variable);
  std::stringstream parts(path != nullptr ? path : "");
  for (std::string folder; std::getline(parts, folder, ':');) {
    if (!folder.empty()) folders.emplace_back(folder);
  }
  return folders;
}

// $XDG_DATA_HOME/vernier/plugins: https://specifications.freedesktop.org/basedir-spec
std::vector<fs::path> folders_of_user() {
  const char* data = std::getenv("XDG_DATA_HOME");
  if (data != nullptr && fs::path(data).is_absolute()) return {fs::path(data) / "vernier" / "plugins"};
  const char* home = std::getenv("HOME");
  if (home == nullptr || !fs::path(home).is_absolute()) return {};
  return {fs::path(home) / ".local" / "share" / "vernier" / "plugins"};
}

// The library that this code is part of, or else the program. The loader knows a program only as it was called.
fs::path this_file() {
  static const char here = 0;
  Dl_info info{};
  link_map* map = nullptr;
  const bool is_known = ::dladdr1(&here, &info, reinterpret_cast<void**>(&map), RTLD_DL_LINKMAP) != 0;
  if (is_known && map->l_name[0] != '\0') return fs::weakly_canonical(map->l_name);
  return boost::dll::program_location().string();
}

// In the build tree the plugins stand beside the program and libvernier_trainer.so. Installed, these are in bin and in
// lib, and the plugins in lib/vernier/plugins.
std::vector<fs::path> folders_of_installation() {
  const auto code = this_file().parent_path();
  return {code / "plugins", code.parent_path() / "lib" / "vernier" / "plugins"};
}

}  // namespace

std::vector<fs::path> plugin_folders_beside(const std::vector<std::string>& files) {
  std::vector<fs::path> folders;
  for (const fs::path file : files) {
    const auto folder = file.parent_path() / "plugins";
    if (std::ranges::find(folders, folder) == folders.end()) folders.push_back(folder);
  }
  return folders;
}

std::vector<fs::path> plugin_folders(const std::vector<std::string>& given, const std::string& given_by,
                                     const std::vector<std::string>& files) {
  std::vector<fs::path> folders;
  for (const auto& folder : given) {
    std::error_code none;
    if (!fs::is_directory(folder, none)) {
      refuse(given_by + folder + ": there is no such folder; name one that has files <role>/<name>.so");
    }
    folders.emplace_back(folder);
  }
  for (const auto& some : {folders_in("VERNIER_PLUGIN_PATH"), plugin_folders_beside(files), folders_of_user(),
                           folders_of_installation()}) {
    folders.insert(folders.end(), some.begin(), some.end());
  }
  return folders;
}

void say_what_it_hides(const fs::path& file, const std::vector<fs::path>& folders, const std::string& role,
                       const std::string& name) {
  static std::set<fs::path> said;
  std::error_code none;
  for (const auto& folder : folders) {
    const auto other = folder / role / (name + ".so");
    if (!fs::exists(other, none) || fs::equivalent(file, other, none) || !said.insert(file).second) continue;
    log(Level::warning, role + "/" + name,
        file.string() + " is used, and hides " + other.string() + ", which has the same name; rename your plugin");
  }
}

}  // namespace vernier
