// Flags for people who know other trainers. Each is short for one --set.
#pragma once

#include <boost/program_options.hpp>
#include <map>
#include <string>
#include <vector>

namespace vernier {

// Adds --mixed-precision, --grad-accum-steps and so on to the known flags.
void add_shorthands(boost::program_options::options_description& known);

// Returns the values that the given flags set, in the form of --set. Throws Error::Kind::configuration for a wrong
// word, if `sets` sets the same key, or for an option of a scaler if there is none. has_scaler: the files have a
// [scaler]; otherwise fp16 adds the dynamic one.
std::vector<std::string> sets_of_shorthands(const boost::program_options::variables_map& given,
                                            const std::vector<std::string>& sets, bool has_scaler);

// Returns true if the key, "run.steps" or "run.steps=9", is one of these or in one of these tables.
bool is_in(const std::vector<std::string>& keys_or_tables, const std::string& key);

// Returns the given flags as written, "--batch-size 32", except those that set something in `without`, as is_in says.
std::vector<std::string> shorthands_given(const boost::program_options::variables_map& given,
                                          const std::vector<std::string>& without = {});

// Returns the words of each shorthand that takes certain words only: {"--mixed-precision", {"no", "fp16", …}}.
std::map<std::string, std::vector<std::string>> words_of_shorthands();

// Returns what to write in place of an unknown flag, "; did you mean --batch-size?", or "". flag: as written, "--bs".
std::string hint_for_flag(const std::string& flag, const boost::program_options::options_description& known);

}  // namespace vernier
