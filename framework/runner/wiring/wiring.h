// The plugins of a run, made from a configuration and checked against each other.
#pragma once

#include <vernier/host.h>
#include <vernier/roles.h>

#include <chrono>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "host.h"
#include "optim/optimizer_groups.h"

namespace vernier {

// The word of [run] validate_every, its default. It is 0 for a task that says that it holds nothing out.
constexpr std::int64_t each_epoch = -1;

// The [run] table.
struct RunOptions {
  std::string name, output, device, resume, init_from, memory_limit, matmul, matmul_precision, engine;
  std::vector<std::string> init_rename;
  bool fused, deterministic, init_strict, requeue, undo_failed_steps, measure_savings;
  std::int64_t steps, epochs, threads, validate_every;
  std::uint64_t seed;
  std::chrono::seconds time_limit;  // 0: none

  explicit RunOptions(Options& options, const std::string& default_name);
};

// Returns the options that [run] declares, with their defaults. default_name: the run's name if it is not given.
Options described_run(const std::string& default_name);

// The origin of a plugin: what it was made from.
struct Origin {
  Options options;
  Value table;  // its TOML table, with `use`; its place is "run.toml:12", or "" if there is none
};

// With the table that the plugin was made from.
struct Made : MadePlugin {
  Value table;
};

// Makes the plugin that a role's table names.
Made make(const Host& host, const std::string& role, const Value& table);

// The table of a role that has exactly one plugin, with its default's name where the configuration names none.
Value table_of(const Table& config, const std::string& role);

// A plugin that the program made itself, in the place of a role's table.
struct Given {
  std::string role;
  Made made;
};

// Gives the plugin its id, "task/rings": its own one, the owner of its options, or "task/object". options: those that
// it was made from, or ones without an owner. Throws Error::Kind::configuration for an id with spaces, and for options
// that were not read.
Given given(const std::string& role, std::unique_ptr<Plugin> plugin, const Options& options);

// One plugin that replaced another in mid-run.
struct Swap {
  std::int64_t step = 0;  // number of updates before it
  std::string role, from, to;
};

// The dtypes in which the task built its parameters and buffers, which a swap of the precision gives back.
using BuiltModel = std::vector<std::pair<torch::Tensor, torch::ScalarType>>;

// Owns every plugin of a run. The bus is destroyed first, so that no listener outlives its plugin; the task last.
struct Wiring {
  ~Wiring();
  std::unique_ptr<Task> task;
  std::unique_ptr<Precision> precision;
  std::unique_ptr<Scaler> scaler;
  std::unique_ptr<Accumulation> accumulation;
  std::unique_ptr<Optimizer> optimizer;
  std::unique_ptr<Checkpoint> checkpoint;
  std::unique_ptr<Distributed> distributed;
  std::vector<std::unique_ptr<Callback>> callbacks;
  std::vector<std::unique_ptr<Monitor>> monitors;
  std::map<const Plugin*, const Plugin*> parts;  // Plugin::fill: each part, and whose it is
  std::map<const Plugin*, Origin> origins;       // origins of the plugins that wire() and swap_in() put here
  std::vector<Swap> swaps;
  BuiltModel built;  // by Task::prepare
  Host host{{}};     // makes the plugins
  Bus bus;

  std::vector<Plugin*> plugins() const;                 // in the order of attach() and prepare()
  const Origin& origin_of(const Plugin& plugin) const;  // an empty one if a test made the plugin
  const Value& table_of(const Plugin& plugin) const { return origin_of(plugin).table; }
  std::string table() const;  // for people: roles, plugins, options that are not defaults, swaps

  // Puts the plugin in `made` into its role, and leaves the old one in `made`. For swappable_roles().
  void swap_in(const std::string& role, Made& made);
  void refuse_contradictions() const;  // throws Error if two plugins contradict each other
};

// The roles whose plugins can be swapped, in the order in which they are prepared.
const std::vector<std::string>& swappable_roles();

// compared: those that must be the same when a run is resumed.
enum class Keys { all, compared };
// Returns every option of every plugin as a JSON object, for checkpoints and summary.json.
std::string resolved_configuration(const Options& run_table, const Wiring& wiring, Keys keys = Keys::all);

// Makes the plugins that the tables name, and attaches them to the bus, callbacks and monitors of `given` behind those
// of the tables. Throws Error if a table is unknown, a role is missing or given twice, or two plugins contradict each
// other.
std::unique_ptr<Wiring> wire(const Table& config, const Host& host, std::vector<Given> given = {});

// Returns merge_config() with the references in its strings replaced, as expanded() does. References find [run]'s
// defaults too.
Table load_config(const std::vector<std::string>& files, const std::vector<std::string>& sets,
                  const std::string& text = "");

// Returns the table of load_config() with --set merged into it, and the references in --set replaced.
Table with_sets(Table config, const std::vector<std::string>& sets);

}  // namespace vernier
