// `vernier report`: one page of HTML about one or more runs, which needs no network.
#include <cerrno>
#include <cstring>
#include <fstream>
#include <iostream>

#include "report_page.h"
#include "verb.h"

namespace {

constexpr vernier::Verb verb = {"report", R"(usage: vernier report RUN... [--output FILE]

Writes one page of HTML about the runs, to read, to print and to send: results, curves of all metrics with what was out
of the ordinary, differences of configuration, machine and versions. It needs no other file and no network.
The folder of a comparison (vernier compare) gives its table too, and the curves of its candidates.

  --output FILE   report.html, if not given; a file that is there is replaced
)"};

int report(const boost::program_options::variables_map& given) {
  const auto words = vernier::words_of(given);
  if (words.empty()) throw vernier::Refused("name one run or more, as in `vernier report runs/a runs/b`");
  std::vector<vernier::RunFiles> runs;
  std::vector<nlohmann::ordered_json> comparisons;
  for (const auto& word : words) {
    if (!vernier::is_comparison(word)) {
      runs.push_back(vernier::read_run(word));
      continue;
    }
    comparisons.push_back(vernier::read_comparison(word));
    for (auto& run : vernier::runs_of(comparisons.back(), word)) runs.push_back(std::move(run));
  }
  const auto path = given["output"].as<std::string>();
  std::ofstream file(path);
  file << vernier::report_page(runs, comparisons) << std::flush;
  if (!file) {
    std::cerr << "vernier: " << path << " cannot be written: " << std::strerror(errno) << '\n';
    return 4;
  }
  std::cout << "wrote " << path << '\n';
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  namespace po = boost::program_options;
  po::options_description known;
  known.add_options()("output", po::value<std::string>()->default_value("report.html"));
  return vernier::call_verb(verb, argc, argv, known, report);
}
