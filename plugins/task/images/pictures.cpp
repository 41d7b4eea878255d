#include "pictures.h"

#include <c10/util/StringUtil.h>
#include <torch/types.h>
#include <vernier/data/data_source.h>
#include <vernier/data/images.h>
#include <vernier/data/readers.h>
#include <vernier/data/split.h>
#include <vernier/error.h>

#include <algorithm>
#include <filesystem>

using vernier::refuse;

namespace {

// A folder needs no labels, a file that is not a list does.
void require_form(const PictureFiles& files) {
  std::error_code none;
  if (!std::filesystem::exists(files.images, none)) {
    refuse("'" + files.images + "' does not exist; paths are relative to the working folder");
  }
  const bool is_folder = std::filesystem::is_directory(files.images, none);
  if (files.is_idx() && is_folder) refuse("`labels` is for an IDX file, and '" + files.images + "' is a folder");
  if (files.is_idx() && vernier::is_image_list(files.images)) {
    refuse("`labels` is for an IDX file, and '" + files.images + "' has the labels in its column label");
  }
  if (!files.is_idx() && !is_folder && !vernier::is_image_list(files.images)) {
    refuse("'" + files.images +
           "' is neither a folder of images nor a CSV file of their names; if it is an IDX file, name that of the "
           "labels by `labels`");
  }
}

Pictures read_idx_files(const PictureFiles& files, const PictureOptions& options) {
  const auto pixels = vernier::read_idx(files.images, 3, options.max_bytes);
  const vernier::Source source{files.labels, vernier::read_idx(files.labels, 1, options.max_bytes), {}, {}};
  if (pixels.size(0) != source.tensor.size(0)) {
    refuse(c10::str("'", files.images, "' has ", pixels.size(0), " images, '", files.labels, "' ",
                    source.tensor.size(0), " labels"));
  }
  if (pixels.size(0) == 0) refuse("'" + files.labels + "' has no labels");
  Pictures all;
  vernier::Classes classes{options.classes, options.names};
  all.labels = vernier::codes_of(source, classes, "");
  all.contents = vernier::fingerprint_of({pixels, all.labels});
  all.dataset = vernier::dataset_of({pixels, all.labels}, files.images, all.contents);
  all.classes = classes.count, all.names = classes.words;
  return all;
}

std::string name_of(const Pictures& pictures, std::int64_t label) {
  return pictures.names.empty() ? std::to_string(label) : pictures.names[static_cast<std::size_t>(label)];
}

torch::Tensor counts_of(const Pictures& pictures) {
  return pictures.labels.bincount({}, pictures.classes);
}

Pictures part_of(const Pictures& all, const torch::Tensor& rows) {
  auto part = all;
  part.dataset = vernier::subset(all.dataset, rows);
  part.labels = all.labels.index_select(0, rows);
  return part;
}

}  // namespace

Pictures read_pictures(const PictureFiles& files, const PictureOptions& options) {
  require_form(files);
  Pictures all;
  if (files.is_idx()) {
    all = read_idx_files(files, options);
  } else {
    const vernier::ImageOptions of_folder = {
        .channels = options.is_grey ? 1 : 3, .classes = options.names, .frames = options.frames};
    auto folder = vernier::is_image_list(files.images) ? vernier::image_list(files.images, of_folder)
                                                       : vernier::image_folder(files.images, of_folder);
    all = {folder.dataset, folder.classes, std::ssize(folder.classes), folder.labels, folder.left_out, folder.contents};
    if (options.classes > 0 && options.classes != all.classes) {
      refuse(c10::str("'", files.images, "' has ", all.classes, " classes, and classes = ", options.classes));
    }
  }
  if (all.classes < 2) refuse("'" + files.images + "' has a single class; there is nothing to tell apart");
  return all;
}

std::pair<Pictures, Pictures> split_pictures(const Pictures& all, double share, std::uint64_t seed) {
  const auto parts = vernier::split_classes(all.labels, share, seed);
  return {part_of(all, parts.training), part_of(all, parts.held_out)};
}

std::string scarce_classes(const Pictures& all, const Pictures& training, const std::string& what) {
  const auto counts = counts_of(all), to_train = counts_of(training);
  std::vector<std::string> absent, single;
  for (std::int64_t i = 0; i < all.classes; ++i) {
    if (to_train[i].item<std::int64_t>() == 0) absent.push_back(vernier::printable(name_of(all, i)));
    if (counts[i].item<std::int64_t>() == 1) single.push_back(vernier::printable(name_of(all, i)));
  }
  std::string text;
  if (!absent.empty()) text = "classes that have no " + what + " to train on: " + vernier::some_of(absent);
  if (!single.empty()) {
    text += (text.empty() ? "" : "; ") + ("classes with a single " + what + ": " + vernier::some_of(single));
  }
  return text;
}
