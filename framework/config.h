// TOML files and --set, merged into one table whose every value knows where it was written.
#pragma once

#include <vernier/options.h>

#include <string>
#include <vector>

namespace vernier {

// Files are merged left to right, then --set. Later values win. A role's table whose `use` changes is replaced, since
// the options of one strategy mean nothing to another; [[callback]] and [[monitor]] entries are matched by `use`, new
// ones are appended. Throws Error::Kind::configuration with file:line.
//   sets: "run.steps=100", 'task.data=["a", "b"]', "callback.clip_norm.max_norm=0.5"; what is no TOML is a string.
Table load_config(const std::vector<std::string>& files, const std::vector<std::string>& sets);

// The table with --set merged into it.
Table with_sets(Table config, const std::vector<std::string>& sets);

// A text that the runner wrote. `where`: the place of all its values.
Table parse_toml(const std::string& text, const std::string& where);

// The table as TOML that load_config() reads again.
std::string to_toml(const Table& config);

}  // namespace vernier
