// The images of a folder of classes or of a list, as they were when they were listed.
#pragma once

#include <vernier/images.h>

#include <cstdint>
#include <string>
#include <vector>

#include "kinds.h"

namespace vernier {

struct ListedImage {
  std::string path, name;  // name: for the fingerprint, the same wherever the folder is
  std::int64_t label;
  std::int64_t size, seconds, nanoseconds;
};

// Looks at a file. Throws Error if it is not there.
ListedImage listed_image(const std::string& path, const std::string& name, std::int64_t label);

// options: with the classes.
ImageFolder folder_of_images(const ImageOptions& options, std::vector<ListedImage> images, const LeftOut& left_out);

}  // namespace vernier
