#include "call.h"

#include <algorithm>
#include <sstream>

#include "tools/common/run_files.h"

namespace vernier {

namespace {

constexpr int refused_statuses[] = {2, 3};     // the configuration or a plugin
constexpr int whole_statuses[] = {0, 5, 124};  // done, diverged, out of time

}  // namespace

std::vector<std::string> command_of(const char* verb, const Common& common, const Candidate& candidate) {
  std::vector<std::string> words = {verb};
  words.insert(words.end(), candidate.files.begin(), candidate.files.end());
  for (const auto* sets : {&common.sets, &candidate.sets}) {
    for (const auto& set : *sets) words.push_back("--set=" + set);
  }
  for (const auto& path : common.plugin_paths) words.push_back("--plugin-path=" + path);
  return words;
}

std::string reason_of(const Ended& ended) {
  std::istringstream lines(ended.err);
  std::string last;
  for (std::string line; std::getline(lines, line);) {
    if (!line.empty()) last = line;
  }
  if (last.empty()) return "vernier ended with status " + std::to_string(ended.status);
  const std::string program = "vernier: ";
  return last.starts_with(program) ? last.substr(program.size()) : last;
}

bool is_refusal(const Ended& ended) {
  return std::ranges::find(refused_statuses, ended.status) != std::end(refused_statuses);
}

bool is_whole(const Ended& ended) {
  return std::ranges::find(whole_statuses, ended.status) != std::end(whole_statuses);
}

std::string merged_configuration(const Common& common, const Candidate& candidate, Children& children) {
  const auto ended = children.run(command_of("config", common, candidate));
  if (children.stopped_by() != 0) return "";
  if (ended.status != 0) throw Refused(reason_of(ended));
  return ended.out;
}

}  // namespace vernier
