// A look at data: what they are, and the options of the task that trains on them.
#pragma once

#include <vernier/value.h>

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

namespace vernier {

struct Findings {
  std::vector<std::string> lines;                             // to be printed
  std::vector<std::pair<std::string, std::string>> task;      // keys and values of [task], as TOML
  std::vector<std::pair<std::string, std::string>> comments;  // keys of [task] and a remark about them
  std::int64_t samples = 0;                                   // to train on and to hold out
  std::int64_t updates = 2000;                                // about so many make a good start
};

// Words of the command line about the data.
struct GivenData {
  std::string target;  // a column's name, or a file for .npy; "": it is found
  Table task;          // options of the task, by --set task.KEY=VALUE
};

// Looks at a CSV file, a .npy file or a folder of images.
// Throws Error with the remedy if the data are something else or the target is not clear.
Findings look_at(const std::string& path, const GivenData& given);

// For the functions above: of a CSV file, and of images.
Findings look_at_table(const std::string& path, const GivenData& given);
Findings look_at_images(const std::string& path);

// A text as TOML that no reference is replaced in. Throws Error if it is not UTF-8.
std::string toml_value(const std::string& text);

}  // namespace vernier
