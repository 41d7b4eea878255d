// TOML files and --set, merged into one table. Each value has the place where it was written.
#pragma once

#include <vernier/options.h>

#include <string>
#include <vector>

namespace vernier {

// Merges the files from left to right, then --set. Later values win. The files that a file includes are merged before
// it, each of them once. A role's table is replaced if its `use` changes, since its options belong to the old plugin.
// [[callback]] and [[monitor]] entries are matched by `use`; new ones are appended, and `remove = true` removes them.
// Throws Error::Kind::configuration with file:line, also for a file over 1 MiB and for tables in each other deeper than
// deepest_toml.
//   sets: "run.steps=100", 'task.data=["a", "b"]', "callback.clip_norm.max_norm=0.5"; other texts are strings
//   text: TOML without `include`, merged after the files; its places are "TOML text:12"
Table merge_config(const std::vector<std::string>& files, const std::vector<std::string>& sets,
                   const std::string& text = "");

// Returns the table with --set merged into it.
Table merge_sets(Table config, const std::vector<std::string>& sets);

// Parses a text that to_toml() wrote. where: the place of all its values.
Table parse_toml(const std::string& text, const std::string& where);

// Returns the value that a text is in TOML, or else the text.
Value parse_value(const std::string& text, const std::string& where);

// Returns the plugin that a table names, or "" if `value` is not such a table.
std::string use_of(const Value& value);

// Returns true for a list that TOML writes with headers, [[callback]]: of tables alone, and not empty.
bool is_list_of_tables(const Value& value);

// Takes the table of a role out of the configuration of a verb that does not use it. Throws Error if --set changes it.
void leave_out(Table& config, const std::string& role);

bool is_same(const Value& a, const Value& b);  // wherever they were written

// Returns the table as TOML that load_config() and parse_toml() can read. with_places: for people, with the place of
// each value in a comment behind it.
std::string to_toml(const Table& config, bool with_places = false);

}  // namespace vernier
