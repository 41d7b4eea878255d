// TOML files and --set, merged into one table. Each value has the place where it was written.
#pragma once

#include <vernier/options.h>

#include <string>
#include <vector>

namespace vernier {

// Merges the files from left to right, then --set. Later values win. A role's table is replaced if its `use` changes,
// since its options belong to the old plugin. [[callback]] and [[monitor]] entries are matched by `use`; new ones are
// appended. Throws Error::Kind::configuration with file:line, also for a file over 1 MiB and for tables in each other
// deeper than deepest_toml.
//   sets: "run.steps=100", 'task.data=["a", "b"]', "callback.clip_norm.max_norm=0.5"; other texts are strings
Table load_config(const std::vector<std::string>& files, const std::vector<std::string>& sets);

// Returns the table with --set merged into it.
Table with_sets(Table config, const std::vector<std::string>& sets);

// Parses a text that the runner wrote. where: the place of all its values.
Table parse_toml(const std::string& text, const std::string& where);

// Returns the table as TOML that load_config() can read.
std::string to_toml(const Table& config);

}  // namespace vernier
