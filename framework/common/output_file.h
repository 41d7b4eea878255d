// The rule for every file that a verb writes because a person names it.
#pragma once

#include <boost/program_options.hpp>
#include <string>

namespace vernier {

// Called before a verb computes anything. Refuses a file that is there, unless --force is given. Even then refuses one
// that the command names, is in a folder that it names, or is named in a TOML file or run among its words: data, models
// and configurations. Refuses a folder that is not there. Devices, pipes and /dev/stdout are written as they are.
// Throws boost::program_options::error with a remedy.
void refuse_output(const boost::program_options::variables_map& given, const std::string& output);

}  // namespace vernier
