#include <torch/types.h>
#include <vernier/data/data_source.h>
#include <vernier/data/images.h>
#include <vernier/error.h>

#include <algorithm>
#include <filesystem>
#include <limits>

#include "findings.h"

namespace vernier {

namespace fs = std::filesystem;

namespace {

// The folders "train" and "val" below a root, under any of their usual names.
struct SplitFolders {
  std::string training, held_out, unused = {};
};

SplitFolders split_folders_of(const std::string& root) {
  SplitFolders splits;
  std::string test;
  for (const auto& entry : fs::directory_iterator(root)) {
    if (!entry.is_directory()) continue;
    const auto name = small_letters(entry.path().filename().string());
    if (name == "train" || name == "training") splits.training = entry.path();
    if (name == "val" || name == "valid" || name == "validation" || name == "dev") splits.held_out = entry.path();
    if (name == "test" || name == "testing") test = entry.path();
  }
  (splits.held_out.empty() ? splits.held_out : splits.unused) = test;
  if (splits.training.empty() || splits.held_out.empty()) return {root, ""};
  return splits;
}

struct Sides {
  std::int64_t shortest = std::numeric_limits<std::int64_t>::max();
  bool are_equal = true;
};

// Measures a hundred images at most.
Sides sides_of(const Dataset& images) {
  Sides sides;
  std::vector<std::int64_t> first;
  const auto every = std::max<std::int64_t>(1, images.size() / 100);
  for (std::int64_t i = 0; i < images.size(); i += every) {
    Random none(0, 0, 0);
    const auto shape = images.get(i, none).at(0).sizes().vec();
    if (first.empty()) first = shape;
    sides.are_equal = sides.are_equal && shape == first;
    sides.shortest = std::min({sides.shortest, shape[1], shape[2]});
  }
  return sides;
}

}  // namespace

Findings look_at_images(const std::string& path) {
  const bool is_list = !fs::is_directory(path);
  const auto splits = is_list ? SplitFolders{path, ""} : split_folders_of(path);
  const auto images = is_list ? image_list(path) : image_folder(splits.training);
  const auto classes = std::ssize(images.classes);
  Findings found;
  found.samples = images.dataset->size();
  found.lines.push_back(c10::str(printable(splits.training), ": ", found.samples, " images in ",
                                 counted({classes, images.classes}, images.labels)));
  if (classes < 2) refuse("'" + splits.training + "' has a single class; there is nothing to tell apart");
  if (!images.left_out.empty()) found.lines.push_back(images.left_out);
  found.task = {{"use", "\"images\""}, {"images", toml_value(splits.training)}};
  if (!splits.held_out.empty()) {
    found.task.emplace_back("validation_images", toml_value(splits.held_out));
    found.lines.push_back(printable(splits.held_out) + ": held out");
    if (!splits.unused.empty()) found.lines.push_back(printable(splits.unused) + ": not used");
  }
  constexpr std::int64_t large = 64, least = 8;
  const auto sides = sides_of(*images.dataset);
  if (!sides.are_equal || sides.shortest > large || sides.shortest < least) {
    const auto size = std::clamp(sides.shortest, least, large);
    found.task.emplace_back("size", std::to_string(size));
    found.lines.push_back(c10::str("images become ", size, " x ", size, ": larger ones take longer, and see more"));
  }
  found.task.emplace_back("model", "\"resnet\"");
  found.task.emplace_back("channels", "8");
  found.updates = 600;
  return found;
}

}  // namespace vernier
