// A folder with run.toml in it, in which the program is called as a person would.
#pragma once

#include <algorithm>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "program.h"
#include "temporary_folder.h"

// The configuration of a small run into the folder `out`. Options of the optimizer and other tables may follow.
inline std::string base_run(int steps) {
  return "[run]\nsteps = " + std::to_string(steps) +
         "\ndevice = \"cpu\"\nthreads = 1\noutput = \"out\"\n[task]\nuse = \"mlp\"\nsamples = 64\n[optimizer]\nuse = "
         "\"sgd\"\n";
}

struct RunFolder {
  explicit RunFolder(const std::string& configuration,
                     const std::filesystem::path& parent = std::filesystem::temp_directory_path())
      : folder(parent) {
    folder.write("run.toml", configuration);
  }

  // before: see Program.
  int call(const std::vector<std::string>& arguments, void (*before)() = nullptr) {
    Program program(arguments, folder.path(), before);
    const int status = program.wait();
    out = program.out();
    err = program.err();
    return status;
  }
  int train(const std::vector<std::string>& more = {}, void (*before)() = nullptr) {
    std::vector<std::string> all = {"train", "run.toml"};
    all.insert(all.end(), more.begin(), more.end());
    return call(all, before);
  }
  nlohmann::json summary(const std::string& run = "out") const {
    return nlohmann::json::parse(read_text(folder.path() / run / "summary.json"));
  }
  std::filesystem::path at(const std::string& name) const { return folder.path() / name; }

  TemporaryFolder folder;
  std::string out, err;
};

inline bool is_one_line(const std::string& text) {
  return std::count(text.begin(), text.end(), '\n') == 1 && text.back() == '\n';
}
