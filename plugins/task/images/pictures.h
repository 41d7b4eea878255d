// The data of task/images: folders and lists of images or clips, and IDX files.
#pragma once

#include <vernier/data/dataset.h>
#include <vernier/tensor.h>

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

// The paths in the configuration.
struct PictureFiles {
  std::string images;  // a folder, a CSV file or an IDX file
  std::string labels;  // an IDX file, or ""
  bool is_idx() const { return !labels.empty(); }
};

struct PictureOptions {
  std::int64_t classes = 0;        // 0: as many as there are
  std::vector<std::string> names;  // names of the classes, if they are known
  bool is_grey = false;
  std::int64_t max_bytes = 0;  // the largest size of an IDX file
  std::int64_t frames = 0;     // frames of a clip; 0: images
};

struct Pictures {
  // Sample: {uint8 [height, width], of colour [channels, height, width], or of clips [frames, channels, height, width],
  // int64 label}.
  vernier::DatasetPtr dataset;
  std::vector<std::string> names;  // names of the classes; none: they are numbers from 0
  std::int64_t classes = 0;
  torch::Tensor labels;  // int64 [samples]
  std::string left_out;  // a sentence about what is left out: see vernier::ImageFolder
  std::string contents;  // identifies the data
};

// Throws Error for data that do not fit together.
Pictures read_pictures(const PictureFiles& files, const PictureOptions& options);

// Returns the images to train on and those held out: the same share of each class, but no class's only image.
std::pair<Pictures, Pictures> split_pictures(const Pictures& all, double share, std::uint64_t seed);

// Returns a warning about classes that have none to train on, or a single one of `all`; "": there are none. what:
// "image", "clip".
std::string scarce_classes(const Pictures& all, const Pictures& training, const std::string& what);
