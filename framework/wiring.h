// From a configuration to plugins that fit together.
#pragma once

#include <vernier/roles.h>

#include <memory>
#include <string>
#include <vector>

#include "host.h"

namespace vernier {

// The [run] table.
struct RunOptions {
  std::string name, output, device, resume, init_from, memory_limit;
  std::vector<std::string> init_rename;
  bool init_strict, requeue;
  std::int64_t steps, epochs, threads, validate_every;
  std::uint64_t seed;

  explicit RunOptions(Options& options, const std::string& default_name);
};

// A plugin, and what it was made from.
struct Made {
  std::unique_ptr<Plugin> plugin;
  Options options;
  Value table;  // as the TOML has it, `use` too; its place is "run.toml:12", or "" where there is none
};

// Makes the plugin that a role's table names.
Made make(const Host& host, const std::string& role, const Value& table);

// What took the place of a role's plugin while the run ran.
struct Exchanged {
  std::int64_t step = 0;  // updates finished before
  std::string role, from, to;
};

// Owns every plugin of a run. The bus dies first, so that no listener outlives its plugin.
struct Wiring {
  std::unique_ptr<Task> task;
  std::unique_ptr<Precision> precision;
  std::unique_ptr<Scaler> scaler;
  std::unique_ptr<Accumulation> accumulation;
  std::unique_ptr<Optimizer> optimizer;
  std::unique_ptr<Checkpoint> checkpoint;
  std::unique_ptr<Distributed> distributed;
  std::vector<std::unique_ptr<Callback>> callbacks;
  std::vector<std::unique_ptr<Monitor>> monitors;
  std::vector<Options> options;  // of each plugin, in the order of plugins()
  std::vector<Value> tables;     // what it was made from, likewise
  std::vector<Exchanged> exchanged;
  Host host{{}};  // that made them
  Bus bus;

  std::vector<Plugin*> plugins() const;               // in the order in which they are attached and prepared
  const Value& table_of(const Plugin& plugin) const;  // what it was made from; an empty one where it was not
  std::string table() const;  // what stands where, options that are not at their default, exchanges

  // Puts a plugin into the place of a role's, and what stood there into `made`. Roles other than the task's.
  void exchange(const std::string& role, Made& made);
  void refuse_contradictions() const;
};

// The roles whose plugins can be exchanged, in the order in which they are prepared.
const std::vector<std::string>& exchangeable_roles();

// Makes the plugins that the tables name and lets them listen. Throws Error where a table is unknown, a role is
// missing, or two plugins contradict each other.
std::unique_ptr<Wiring> wire(const Table& config, const Host& host);

}  // namespace vernier
