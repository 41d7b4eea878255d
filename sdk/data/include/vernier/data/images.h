// Images in PNG, JPEG and WebP files, one or a folder of classes; and clips, which are folders of such frames or NumPy
// files.
//
//   const auto training = vernier::image_folder("train");
//   vernier::ImageOptions options;
//   options.classes = training.classes;
//   const auto held_out = vernier::image_folder("test", options);
//   auto dataset = vernier::transform(training.dataset, {vernier::resize(224, 224), vernier::to_float()});
#pragma once

#include <vernier/abi.h>
#include <vernier/data/dataset.h>
#include <vernier/tensor.h>

#include <cstdint>
#include <string>
#include <vector>

namespace vernier {

struct ImageOptions {
  // 3: red, green and blue; 1: grey; 0: the number of each pixel as a PNG in grey or with a palette has it, for masks
  std::int64_t channels = 3;
  // An image of more pixels is refused before it is decoded: a small file can claim any size. The default is Pillow's.
  std::int64_t max_pixels = 89'478'485;
  // The names of the folders, for image_folder(); none: all that are there, sorted.
  std::vector<std::string> classes = {};
  std::int64_t frames = 0;  // folders and lists: frames taken from each clip; 0: they have images, not clips
};

// Any thread may call the functions, several at the same time. They throw Error with the path of the image.

// Decodes an image: uint8 [channels, height, width]. The first bytes of the file decide its format, not its name. The
// image is turned as its EXIF orientation says. libpng, libjpeg-turbo and libwebp convert palettes, grey, 16 bits a
// channel (to the upper 8), interlaced and progressive images. Transparency is dropped, as torchvision does it. Colour
// profiles and gamma are ignored. Refused are CMYK, animations, images that are cut short or damaged, and those with
// more pixels than max_pixels.
VERNIER_API torch::Tensor read_image(const std::string& path, const ImageOptions& options = {});

// Writes uint8 numbers [height, width] as a PNG with a palette. They index the palette: ImageOptions::channels = 0
// and Pillow read them back. The colours are those of PASCAL VOC's masks.
VERNIER_API void write_mask(const std::string& path, const torch::Tensor& numbers);

// The same of the bytes of a file. name: for messages.
VERNIER_API torch::Tensor decode_image(const std::string& bytes, const std::string& name,
                                       const ImageOptions& options = {});

struct ImageFolder {
  // Sample: {uint8 [channels, height, width], int64 label}; of clips {uint8 [frames, channels, height, width], …}.
  DatasetPtr dataset;
  std::vector<std::string> classes;  // the label i stands for classes[i]
  torch::Tensor labels;              // int64 [samples]
  std::string left_out;              // a sentence about files that are left out and short clips; "": there are none
  std::string contents;              // a checksum of names, labels and sizes; the dataset's fingerprint has no sizes
};

// The images root/class/name, by class and then by name, in the order of bytes. The first bytes of a file decide if it
// is one. Other files are left out, and those whose names begin with a dot. Decoded images may differ in size: a
// transform must make them equal before they can be batched. Throws Error if there is no class, a class has no folder
// or no image, the root has a folder that is not a class, or a class has a folder in it.
//
// An image whose size or time of change differs from when the folder was listed is refused by get(). The fingerprint
// has the names of all files, but not their bytes, since reading them would take as long as an epoch.
//
// With options.frames a class has clips. A clip is a folder of images, in the order of their names with numbers by
// their value, or a .npy file: uint8 [frames, height, width] or [frames, height, width, 1 or 3]. It is cut into
// options.frames equal parts, and the middle frame of each is taken; a shorter clip repeats frames. Throws Error for
// frames that differ in size, and for an array of another form.
VERNIER_API ImageFolder image_folder(const std::string& root, const ImageOptions& options = {});

// The same of a CSV file with the columns `file` and `label`. Names are relative to the folder of the CSV file. Throws
// Error for a file that is not there, is not an image, or is named twice.
VERNIER_API ImageFolder image_list(const std::string& path, const ImageOptions& options = {});
VERNIER_API bool is_image_list(const std::string& path);  // by its ending

}  // namespace vernier
