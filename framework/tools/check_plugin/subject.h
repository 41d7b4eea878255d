// The plugin that is checked, and the run in which it is.
#pragma once

#include <string>
#include <vector>

#include "common/config/config.h"
#include "wiring/host.h"
#include "wiring/wiring.h"

namespace vernier {

struct Subject {
  Host host;               // finds the other plugins of the run, and this one too where `use` is a name
  std::string role, name;  // role and name in its descriptor
  std::string use;         // a name that the host finds, or a path with a slash
  Table options;           // options of its table, without `use`
  Table base;              // the other tables of the run

  std::string id() const { return role + "/" + name; }
  // precision/format makes quantizers, so a run has no table of this role.
  bool is_quantizer() const { return role == "quantizer"; }
  std::string role_in_run() const { return is_quantizer() ? Precision::role : role; }
  // The run: `base` with the plugin in its role, or behind the other callbacks or monitors.
  Table config() const;
  // The same without the plugin: the role has its default, or that of a small run.
  Table config_without() const;
};

// The run in which a plugin is checked if the user names none: 20 steps of a small network on the CPU, with
// dropout and batch normalisation, a validation after each fifth, a dynamic loss scale and AdamW.
Table small_base();

// Returns whether the run has the small network, so that many steps of it take little time.
bool is_small(const Subject& subject);

// Changes the plugin's options and the run by --set. A key without a table is an option of the plugin: "max_norm=1" is
// "callback.clip_norm.max_norm=1". Throws Error::Kind::configuration, as load_config() does, and for what the check
// chooses itself: the plugin, and the steps, device and threads of small_base().
void change(Subject& subject, const std::vector<std::string>& sets);

// The run of a user's TOML file for the same steps on the CPU. Takes the options of the plugin's own table out of it.
Table base_of_file(const std::string& file, const std::string& role, const std::string& name, Table& options);

}  // namespace vernier
