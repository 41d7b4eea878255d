#include "verb.h"

#include <cerrno>
#include <csignal>
#include <cstdio>
#include <cstring>
#include <fstream>
#include <iostream>

namespace vernier {

namespace po = boost::program_options;

int call_verb(const Verb& verb, int argc, char** argv, po::options_description known,
              const std::function<int(const po::variables_map&)>& body) {
  std::signal(SIGPIPE, SIG_DFL);  // `vernier runs | head` ends here
  std::signal(SIGXFSZ, SIG_IGN);
  try {
    known.add_options()("help", "")("word", po::value<std::vector<std::string>>());
    po::positional_options_description places;
    places.add("word", -1);
    po::variables_map given;
    po::store(po::command_line_parser(argc, argv).options(known).positional(places).run(), given);
    po::notify(given);
    if (given.count("help") != 0) {
      std::cout << verb.usage;
      return 0;
    }
    return body(given);
  } catch (const po::error& error) {
    std::cerr << "vernier: " << error.what() << "; see vernier " << verb.name << " --help\n";
  } catch (const std::exception& error) {
    std::cerr << "vernier: " << error.what() << '\n';
  }
  return 2;
}

std::vector<std::string> words_of(const po::variables_map& given) {
  return words_in(given, "word");
}

std::vector<std::string> words_in(const po::variables_map& given, const char* option) {
  return given.count(option) != 0 ? given[option].as<std::vector<std::string>>() : std::vector<std::string>{};
}

bool write_whole(const std::filesystem::path& path, const std::string& text) {
  const auto temporary = std::filesystem::path(path.string() + ".tmp");
  std::ofstream file(temporary, std::ios::binary);
  file << text << std::flush;
  if (file && std::rename(temporary.c_str(), path.c_str()) == 0) return true;
  std::cerr << "vernier: " << path.string() << " cannot be written: " << std::strerror(errno) << '\n';
  return false;
}

}  // namespace vernier
