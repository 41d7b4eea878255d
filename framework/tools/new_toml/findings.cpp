#include "findings.h"

#include <torch/types.h>
#include <vernier/data/data_source.h>
#include <vernier/data/images.h>
#include <vernier/data/numpy.h>
#include <vernier/error.h>

#include <algorithm>
#include <cctype>
#include <filesystem>

#include "common/text/quoting.h"

namespace vernier {

namespace fs = std::filesystem;

namespace {

std::string ending_of(const std::string& path) {
  auto ending = fs::path(path).extension().string();
  std::ranges::transform(ending, ending.begin(), [](unsigned char c) { return std::tolower(c); });
  return ending;
}

// The targets beside an array, if there is one file with such a name.
std::string targets_beside(const std::string& path) {
  std::vector<std::string> found;
  for (const char* name : {"y.npy", "labels.npy", "target.npy", "targets.npy"}) {
    const auto file = (fs::path(path).parent_path() / name).string();
    if (file != path && fs::exists(file)) found.push_back(file);
  }
  if (found.size() == 1) return found[0];
  refuse("name the file of the targets of '" + path + "', as in --target y.npy");
}

Findings look_at_array(const std::string& path, const std::string& given) {
  const auto targets = given.empty() ? targets_beside(path) : given;
  const auto x = read_npy(path), y = read_npy(targets);
  if (x.dim() < 2 || x.dim() > 3) {
    refuse(c10::str("'", path, "' has the shape ", x.sizes(),
                    "; a table has [rows, columns], sequences have [samples, steps, features]"));
  }
  if (y.dim() == 0 || y.size(0) != x.size(0)) {
    refuse(c10::str("'", path, "' has ", x.size(0), " samples, and '", targets, "' the shape ", y.sizes()));
  }
  const auto classes = class_numbers(y.to(torch::kFloat64).flatten());
  const bool is_classes = y.dim() == 1 && classes.defined();
  Findings found;
  found.samples = x.size(0);
  const bool is_table = x.dim() == 2;
  found.lines.push_back(
      is_table ? c10::str(path, ": a table of ", x.size(0), " rows and ", x.size(1), " columns")
               : c10::str(path, ": ", x.size(0), " sequences of ", x.size(1), " steps and ", x.size(2), " features"));
  found.lines.push_back(c10::str(targets, ": ", is_classes ? c10::str(classes.numel(), " classes") : "numbers"));
  found.task = {{"use", is_table ? "\"tabular\"" : "\"sequence\""},
                {"kind", is_classes ? "\"classification\"" : "\"regression\""},
                {"data", toml_value(path)},
                {"targets", toml_value(targets)}};
  return found;
}

}  // namespace

std::string toml_value(const std::string& text) {
  if (printable(text, text) != text) refuse("'" + printable(text) + "' is not UTF-8, as TOML must be; rename it");
  std::string escaped;
  for (std::size_t i = 0; i < text.size(); ++i) {
    if (text.compare(i, 2, "${") == 0) escaped += '$';
    escaped += text[i];
  }
  return toml_quoted(escaped);
}

Findings look_at(const std::string& path, const GivenData& given) {
  const auto& target = given.target;
  std::error_code none;
  if (!fs::exists(path, none)) refuse("'" + path + "' does not exist; paths are relative to the working folder");
  if (fs::is_directory(path, none)) {
    if (!target.empty()) refuse("--target is for files; the classes of images are their folders");
    return look_at_images(path);
  }
  if (!fs::is_regular_file(path, none)) refuse("'" + path + "' is not a regular file; only those are read");
  const auto ending = ending_of(path);
  if (ending == ".npz") {
    refuse("'" + path +
           "' is a NumPy archive; save inputs and targets by numpy.save, and name x.npy and --target y.npy");
  }
  if (ending == ".jsonl") {
    refuse("'" + path +
           "' is JSON Lines, which language models read: see [task] use = \"llama\" or \"gpt\"; a table is CSV");
  }
  return ending == ".npy" ? look_at_array(path, target) : look_at_table(path, given);
}

}  // namespace vernier
