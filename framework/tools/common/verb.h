// Shared by the programs of these verbs: options, and how an error ends them.
#pragma once

#include <boost/program_options.hpp>
#include <filesystem>
#include <functional>
#include <string>
#include <vector>

namespace vernier {

struct Verb {
  const char* name;   // "watch"
  const char* usage;  // of --help
};

// Reads the options and the words that are none ("word", a vector of strings), then calls the body. Returns the exit
// status: that of the body; 2 with one line on standard error where the command or a file is wrong; 0 after --help.
int call_verb(const Verb& verb, int argc, char** argv, boost::program_options::options_description known,
              const std::function<int(const boost::program_options::variables_map&)>& body);

std::vector<std::string> words_of(const boost::program_options::variables_map& given);
// Returns the values of an option that may be repeated; empty if it is not given.
std::vector<std::string> words_in(const boost::program_options::variables_map& given, const char* option);

// Writes a file through a second one beside it, so that it is whole or not there. Returns false where that fails, and
// says why on standard error.
bool write_whole(const std::filesystem::path& path, const std::string& text);

}  // namespace vernier
