#include "verb.h"

#include <csignal>
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
  return given.count("word") != 0 ? given["word"].as<std::vector<std::string>>() : std::vector<std::string>{};
}

}  // namespace vernier
