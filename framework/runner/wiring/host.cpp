#include "host.h"

#include <vernier/foreign_code.h>
#include <vernier/host.h>

#include <algorithm>

#include "common/config/plugin_folders.h"
#include "common/left_out.h"
#include "core/process_state.h"

namespace vernier {

namespace fs = std::filesystem;

namespace {
std::map<std::string, std::string>& builds() {
  static std::map<std::string, std::string> all;
  return all;
}
}  // namespace

std::string build_of(const std::string& id) {
  const auto found = builds().find(id.substr(0, id.find('#')));
  return found != builds().end() ? found->second : "";
}

Host::Place Host::find(const std::string& role, const std::string& name) const {
  std::error_code none;
  if (name.find('/') != std::string::npos) {
    if (fs::exists(name, none)) return {name, ""};
    refuse_library(name + ": there is no such file; without a slash, `use` is the name of a " + role +
                   " in the plugin path");
  }
  for (const auto& folder : folders_) {
    if (auto file = folder / role / (name + ".so"); fs::exists(file, none)) return {file, folder};
  }
  if (const auto why = left_out(role + "/" + name); !why.empty()) refuse_library(why);
  std::vector<std::string> names, folders;
  for (const auto& plugin : list()) {
    if (plugin.role == role) names.push_back(plugin.name);
  }
  for (const auto& folder : folders_) folders.push_back(folder.string());
  const auto near = nearest(name, names), all = c10::Join(", ", names), searched = c10::Join(", ", folders);
  refuse_library("no " + role + " is called \"" + shortened(name) + "\"" +
                 (near.empty() ? "" : "; did you mean \"" + near + "\"?") +
                 (all.empty() ? " (none of this role in " : " (there are: " + all + "; searched: ") + searched + ")");
}

std::unique_ptr<Plugin> Host::make(const std::string& role, const std::string& name, Options& options,
                                   const std::string& sha256) const {
  const auto [file, folder] = find(role, name);
  say_what_it_hides(file, folders_, role, name);
  if (folder.empty()) refuse_foreign_code("the library " + file.string());
  PluginFile library(file, folder);
  if (const auto digest = sha256.empty() ? "" : library.sha256(); digest != sha256) {
    refuse_library(file.string() + ": its SHA-256 is " + digest + ", and `sha256` pins " + sha256 +
                   "; if you trust this file, pin its digest");
  }
  const Descriptor found = library.descriptor();
  if (role != found.role) {
    refuse_library(file.string() + ": is a " + found.role + " (\"" + found.name + "\"), not a " + role);
  }
  const std::string id = role + "/" + found.name;
  const Descriptor& plugin = library.open(id);
  std::unique_ptr<Plugin> made;
  try {
    const PluginCall call(id, "in its constructor");
    made.reset(plugin.create(options));
  } catch (...) {
    rethrow_naming(id, " failed in its constructor", Error::Kind::plugin);
  }
  if (made == nullptr) refuse_library(file.string() + ": its create function made nothing");
  HostApi::refuse_unread(options);
  HostApi::set_id(*made, id);
  HostApi::set_version(*made, plugin.version);
  builds()[id] = library.checksum();
  return made;
}

std::vector<Host::Listed> Host::list() const {
  std::vector<Listed> all;
  const auto list_role = [&all](const fs::path& role, const fs::path& folder) {
    std::error_code trouble;
    for (fs::directory_iterator entry(role, trouble), end; !trouble && entry != end; entry.increment(trouble)) {
      const auto& file = entry->path();
      if (file.extension() != ".so") continue;
      Listed plugin{role.filename().string(), file.stem().string(), "", "", file};
      try {
        const auto descriptor = PluginFile(file, folder).descriptor();
        plugin.version = descriptor.version;
        if (plugin.role != descriptor.role) plugin.trouble = std::string("it is a plugin of role ") + descriptor.role;
      } catch (const Error& error) {
        plugin.trouble = error.what();
      }
      all.push_back(std::move(plugin));
    }
  };
  for (const auto& folder : folders_) {
    std::error_code trouble;
    for (fs::directory_iterator entry(folder, trouble), end; !trouble && entry != end; entry.increment(trouble)) {
      list_role(entry->path(), folder);  // an entry that is not a folder lists nothing
    }
  }
  std::sort(all.begin(), all.end(),
            [](const auto& a, const auto& b) { return std::tie(a.role, a.name) < std::tie(b.role, b.name); });
  return all;
}

}  // namespace vernier
