// The axes that an advice may change, each with the options that this configuration and its plugins have.
#pragma once

#include <toml++/toml.h>

#include <nlohmann/json.hpp>

#include <map>
#include <string>
#include <vector>

namespace vernier {

struct Setting {
  std::string key, value;  // "precision.level" and "\"O2\"", the value in TOML
};

struct Option {
  std::string name;               // its name in the table: "bf16-O2", "micro_batches=4"
  std::vector<Setting> settings;  // empty: as the configuration has it
};

struct Axis {
  std::string name;             // "micro-batches"
  std::vector<Option> options;  // the first is that of the configuration as it is written
  std::string note;             // why there is no other option; "" if there is one
};

// The option of each axis by its place. All 0: as written.
using Choice = std::vector<std::size_t>;

// The options of words of a plugin, from the schema of its table that `vernier config --schema ROLE/NAME` prints.
struct Declared {
  std::string fallback;            // in TOML
  std::vector<std::string> words;  // the allowed words
};
using DeclaredOptions = std::map<std::string, Declared>;
DeclaredOptions declared_in(const nlohmann::json& schema);

// The facts from which the axes follow.
struct AxisInputs {
  toml::table written;  // the configuration
  DeclaredOptions run, task, optimizer;
  bool is_on_cpu = true, is_amd = false;
  bool saves_memory = false;  // also what only saves memory: recomputation, the optimizer's state
};

// The first axis is that of precision. Its option "fp32" is there in each case: the losses are compared with it.
std::vector<Axis> axes_of(const AxisInputs& inputs);

std::size_t place_of_float32(const Axis& precision);

Choice as_written(const std::vector<Axis>& axes);
std::string name_of(const std::vector<Axis>& axes, const Choice& choice);  // "as written", "bf16, micro_batches=4"
std::vector<Setting> settings_of(const std::vector<Axis>& axes, const Choice& choice);
std::size_t changes_in(const Choice& choice);  // axes that are not as written

// Returns a file to merge after the configuration, with a table for each role.
std::string overlay_of(const std::vector<Setting>& settings);

}  // namespace vernier
