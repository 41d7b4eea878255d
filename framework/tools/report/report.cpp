// `vernier report`: one page of HTML about one or more runs, which needs no network.
#include <fstream>
#include <iostream>

#include "browser.h"
#include "common/output_file.h"
#include "common/page/report_page.h"
#include "common/verb.h"

namespace {

constexpr const char* usage = R"(usage: vernier report RUN... [--output FILE] [--png FILE]

Writes one page of HTML about the runs, to read, to print and to send: results, curves of all metrics with what was out
of the ordinary, differences of configuration, machine and versions. It needs no other file and no network.
The folder of a comparison (vernier compare) gives its table too, and the curves of its candidates.

  --output FILE   report.html, if not given, which replaces the last one; any other file that is there is kept
  --png FILE      the page as a picture, drawn by Chromium or Chrome; without --output nothing but the picture
  --force         replaces files that are there
)";

bool write(const std::string& path, const std::string& text) {
  if (!vernier::write_or_complain(path, text)) return false;
  std::cout << "wrote " << path << '\n';
  return true;
}

// Returns true for the default page of an earlier call, which the next one replaces.
bool is_old_page(const boost::program_options::variable_value& output) {
  const std::string path = output.as<std::string>(), head = vernier::report_head;
  if (!output.defaulted() || !std::filesystem::is_regular_file(std::filesystem::symlink_status(path))) return false;
  std::ifstream file(path);
  std::string begin(head.size(), '\0');
  return file.read(begin.data(), std::ssize(begin)) && begin == head;
}

int report(const boost::program_options::variables_map& given) {
  const auto words = vernier::words_of(given);
  if (words.empty()) throw vernier::Refused("name one run or more, as in `vernier report runs/a runs/b`");
  const bool has_page = given.count("png") == 0 || !given["output"].defaulted();
  for (const char* option : {"output", "png"}) {
    if (given.count(option) != 0 && !is_old_page(given[option]) && (has_page || option != std::string("output"))) {
      vernier::refuse_output(given, given[option].as<std::string>());
    }
  }
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
  const auto page = vernier::report_page(runs, comparisons);
  if (has_page && !write(given["output"].as<std::string>(), page)) return 4;
  if (given.count("png") == 0) return 0;
  const auto path = given["png"].as<std::string>();
  return write(path, vernier::picture_of(page, vernier::find_browser(), path)) ? 0 : 4;
}

}  // namespace

int main(int argc, char** argv) {
  namespace po = boost::program_options;
  po::options_description known;
  known.add_options()("output", po::value<std::string>()->default_value("report.html"));
  known.add_options()("png", po::value<std::string>())("force", "");
  return vernier::call_verb({"report", usage, known, report}, argc, argv);
}
