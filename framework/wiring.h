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
  std::string name, output, device, resume, init_from;
  std::vector<std::string> init_rename;
  bool init_strict, requeue;
  std::int64_t steps, epochs, threads, validate_every;
  std::uint64_t seed;

  explicit RunOptions(Options& options, const std::string& default_name);
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
  std::vector<Options> options;     // of each plugin, in the order of plugins()
  std::vector<std::string> places;  // of their tables: "run.toml:12", or "" where there is none
  Bus bus;

  std::vector<Plugin*> plugins() const;  // in the order in which they are attached and prepared
  std::string place_of(const Plugin& plugin) const;
  std::string table() const;  // what stands where, with the options that are not at their default
};

// Makes the plugins that the tables name and lets them listen. Throws Error where a table is unknown, a role is
// missing, or two plugins contradict each other.
std::unique_ptr<Wiring> wire(const Table& config, const Host& host);

}  // namespace vernier
