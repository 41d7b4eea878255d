// Words of the command line for people who come from other trainers. Each is exactly a --set.
#pragma once

#include <boost/program_options.hpp>
#include <string>
#include <vector>

namespace vernier {

// Adds --mixed_precision, --grad_accum_steps and so on to what the command line knows.
void add_shorthands(boost::program_options::options_description& known);

// What they set, as in --set. Throws Error::Kind::configuration where a word is none of those that it takes, or where a
// --set in `sets` says the same. has_scaler: the files have a [scaler]; without one fp16 brings the dynamic one.
std::vector<std::string> sets_of_shorthands(const boost::program_options::variables_map& given,
                                            const std::vector<std::string>& sets, bool has_scaler);

// Those that were given, as they are written: "--batch_size 32"; those of `without` left out.
std::vector<std::string> shorthands_given(const boost::program_options::variables_map& given,
                                          const std::vector<std::string>& without = {});

}  // namespace vernier
