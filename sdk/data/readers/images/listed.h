// The images or clips of a folder of classes or of a list, as they were when they were listed.
#pragma once

#include <vernier/data/images.h>

#include <cstdint>
#include <string>
#include <vector>

#include "kinds.h"

namespace vernier {

// Size and time of change of a file; of several frames their sums.
struct FileState {
  std::int64_t size = 0, seconds = 0, nanoseconds = 0;
  bool operator==(const FileState&) const = default;
};

struct ListedImage {
  std::string path, name;  // name: for the fingerprint, the same wherever the folder is
  std::int64_t label = 0;
  std::vector<std::string> frames = {};  // clip in a folder: the files that are taken from it
  FileState state = {};
};

// Looks at an image, or at a clip where options.frames is not 0. Throws Error if it is not there, or is not a clip.
ListedImage listed_image(const std::string& path, const std::string& name, std::int64_t label,
                         const ImageOptions& options, LeftOut& left_out);

// Looks at the images or clips in the column `file` of a CSV file. The label of each is its row.
std::vector<ListedImage> images_in_list(const std::string& path, const ImageOptions& options, LeftOut& left_out);

// options: with the classes.
ImageFolder folder_of_images(const ImageOptions& options, std::vector<ListedImage> images, const LeftOut& left_out);

// Returns the names of the images or clips in the folder of a class or a clip, in the order of bytes. Throws Error if
// there are none, or for a folder among images. what: "class", "clip".
std::vector<std::string> names_to_read(const std::string& folder, Wanted wanted, const std::string& what,
                                       LeftOut& left_out);

inline constexpr const char* frames_of_video = ", as `ffmpeg -i clip.mp4 clip/%06d.png` does";

// Returns the paths of the frames that are taken from a clip that is a folder.
std::vector<std::string> frames_of(const std::string& folder, const ImageOptions& options, LeftOut& left_out);
// Refuses a .npy file that is not a clip.
void check_clip(const std::string& path, const ImageOptions& options, LeftOut& left_out);
// Returns uint8 [frames, channels, height, width].
torch::Tensor read_clip(const ListedImage& clip, const ImageOptions& options);

}  // namespace vernier
