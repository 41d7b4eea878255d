// A verb of the command line, `vernier report`: its options, its help, and how an error ends it.
#pragma once

#include <boost/program_options.hpp>
#include <filesystem>
#include <functional>
#include <map>
#include <sstream>
#include <string>
#include <vector>

namespace vernier {

struct Verb {
  std::string name;   // "report"
  std::string usage;  // printed by --help
  boost::program_options::options_description options;
  std::function<int(const boost::program_options::variables_map&)> run;  // returns the exit status
  // The words that a shell offers behind a word or an option: {"new", {"plugin", "task", "app"}}.
  std::map<std::string, std::vector<std::string>> choices = {};
  // Returns what to add to the error about an unknown option, "; did you mean --steps?"; may be empty.
  std::function<std::string(const std::string& option)> hint = {};
};

// Parses the command line behind the verb and runs the verb; --help prints its usage and returns 0. Options are written
// with hyphens, and underscores mean the same. Throws boost::program_options::error for a wrong command line.
int run_verb(const Verb& verb, int argc, char** argv);

// Returns an option, "--log_dir=a_b", with hyphens in its name.
std::string with_hyphens(std::string word);

// Runs a verb as the main of a program without LibTorch. Returns its exit status; 2 with one line on standard error if
// the command or a file is wrong. `vernier-report complete WORD…` prints what a shell offers.
int call_verb(const Verb& verb, int argc, char** argv);

// Called at the end of a program. Returns its exit status; 6, with one line on standard error, where what it printed
// cannot be written, as on a full disk.
int after_output(int status);

// Prints a text for other programs. Until it is there, and afterwards, what plugins print goes to standard error.
void print_result(const std::function<std::string()>& text);

// Returns what a shell offers for the last of the words behind the verb: options, or the verb's choices.
std::vector<std::string> completions_of(const Verb& verb, const std::vector<std::string>& words);
// Prints them, one a line.
int print_completions(const Verb& verb, int argc, char** argv);

// Joins the pieces into which bash cuts words at each "=". cut: where the part begins that bash expects back.
std::vector<std::string> joined_pieces(const std::vector<std::string>& pieces, std::size_t& cut);

// The words that are not options.
std::vector<std::string> words_of(const boost::program_options::variables_map& given);
// The values of an option that may be repeated; empty if it is not given.
std::vector<std::string> words_in(const boost::program_options::variables_map& given, const char* option);
std::string word_or(const boost::program_options::variables_map& given, const char* option,
                    const std::string& fallback);

// Refuses the options that this way to call the verb does not read. call: "check --resume"
void refuse_unread(const boost::program_options::variables_map& given, const std::string& call,
                   const std::vector<std::string>& options);

// Returns the number of an option, and refuses one that is out of range.
template <class Number>
Number number_in(const boost::program_options::variables_map& given, const char* option, Number least, Number most) {
  const auto number = given[option].as<Number>();
  if (number >= least && number <= most) return number;
  std::ostringstream text;
  text << "--" << option << " is " << number << ", and must be from " << least << " to " << most;
  throw boost::program_options::error(text.str());
}

// Writes a text whole. Returns false if that fails, and prints the reason to standard error.
bool write_or_complain(const std::filesystem::path& path, const std::string& text);

}  // namespace vernier
