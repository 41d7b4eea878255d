// A look at data: what they are, and the options of the task that trains on them.
#pragma once

#include <vernier/tensor.h>
#include <vernier/value.h>

#include <cstdint>
#include <optional>
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
  std::int64_t epochs = 0;                                    // 0: as many as make so many updates
  std::int64_t most_epochs = 300;                             // few samples get no more
  std::int64_t validations = 40;                              // a run has so many; a large one fewer
  std::int64_t patience = 0;                                  // 0: the default of early stopping
  std::int64_t batch = 0;                                     // samples of an update; 0: by the number of samples
  const char* learning_rate = "3e-3";
  // Words behind `vernier new toml` for other tasks that the data fit, and a remark; two at most are shown.
  std::vector<std::pair<std::vector<std::string>, std::string>> others;

  const std::string* option(const std::string& key) const;  // its value in `task` as TOML; nullptr without one
};

// Words of the command line about the data.
struct GivenData {
  std::string target;  // a column's name, or a file for .npy; "": it is found
  Table task;          // options of the task, by --set task.KEY=VALUE
  std::string use;     // the task, by --set task.use=NAME; "": it is found
};

// Looks at data of any kind, or at a model and the data that it learns from.
// Throws Error with the remedy if the data are something else or the target is not clear.
Findings look_at(const std::vector<std::string>& paths, const GivenData& given);

// Findings of a CSV file, and of images.
Findings look_at_table(const std::string& path, const GivenData& given);
Findings look_at_images(const std::string& path);

// Returns true for a .pt2 file, a .pt file, or a folder with a config.json.
bool is_model(const std::string& path);
// Findings of a model and the data that it learns from.
Findings look_at_model(const std::string& model, const std::vector<std::string>& data, const GivenData& given);

[[noreturn]] void refuse_packed(const std::string& path);  // by gzip
// Returns the findings for a file, or a folder of files, that a byte-level language model trains on.
Findings look_at_bytes(const std::string& path);
// Counts the files below a folder that have the ending of a text file, at any depth.
std::int64_t texts_in(const std::string& folder);
// Refuses the folder of a run, and one that has runs, tables or arrays beside its texts, with what to type.
void refuse_mixed_folder(const std::string& path);

// Findings of inputs and their targets, each with the name of its source.
using NamedArray = std::pair<std::string, torch::Tensor>;
Findings findings_of_arrays(const NamedArray& x, const NamedArray& y, bool are_sequences);

// Findings of a series, or of the arrays in an archive. Returns nothing for another .npy file.
std::optional<Findings> look_at_sequences(const std::string& path, const GivenData& given);

// Refuses a path that is not there, or whose bytes or name are those of a format that is not read. The error has the
// line that converts it.
void require_readable(const std::string& path);

std::string small_letters(std::string text);
bool is_number(std::string text);

// The ending of a name in small letters, without ".gz".
std::string ending_of(const std::string& path);
bool is_picture(const std::string& path);  // by its ending
bool is_text(const std::string& path);     // by its ending

// The name of data without its ending: images/ is images, and "." the working folder's name.
std::string name_of(const std::string& data);

// A text as TOML that no reference is replaced in. Throws Error if it is not UTF-8.
std::string toml_value(const std::string& text);
std::string toml_list(const std::vector<std::string>& texts);  // the same of each

}  // namespace vernier
