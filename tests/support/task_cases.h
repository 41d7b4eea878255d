// Odd data files and what a task prints of each, in a folder with cases.txt. A line of it is "file | options | refused
// TEXT" or "file | options | says TEXT", with "; " between options.
#pragma once

#include <doctest/doctest.h>

#include <fstream>
#include <string>

#include "loaded_task.h"
#include "log_lines.h"
#include "small_run.h"
#include "thrown.h"

inline vernier::Table options_of(const std::string& path, std::string options) {
  for (auto at = options.find("; "); at != std::string::npos; at = options.find("; ")) options.replace(at, 2, "\n");
  const auto config = from_toml({"[task]\ndata = '" + path + "'\nworkers = 0\n" + options + "\n"});
  return std::get<vernier::Table>(config.at("task").data);
}

// The lines that a task with these options prints; or the error.
inline std::string printed(const std::string& task, const std::string& path, const std::string& options) {
  const LogLines log;
  const auto thrown = thrown_by([&] { LoadedTask(task, options_of(path, options)); });
  std::string text;
  for (const auto& line : LogLines::lines()) text += "says " + line + "\n";
  if (thrown.kind == 0) return text;
  CHECK_MESSAGE(thrown.kind == 2, thrown.text);
  CHECK_MESSAGE(thrown.text.find('\n') == std::string::npos, thrown.text);
  return "refused " + thrown.text;
}

// Returns the number of cases. folder: ends in "/".
inline int check_cases(const std::string& task, const std::string& folder) {
  std::ifstream cases(folder + "cases.txt");
  int count = 0;
  for (std::string line; std::getline(cases, line); ++count) {
    const auto first = line.find(" | "), second = line.find(" | ", first + 3);
    const auto expected = line.substr(second + 3);
    const auto text = printed(task, folder + line.substr(0, first), line.substr(first + 3, second - first - 3));
    const auto word = expected.substr(0, expected.find(' ') + 1);
    CAPTURE(line);
    CAPTURE(text);
    CHECK(text.starts_with(word));
    CHECK(says(text, expected.substr(word.size())));
  }
  return count;
}
