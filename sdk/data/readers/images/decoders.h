// Decodes PNG, JPEG and WebP to uint8 [height, width, channels]. The C libraries of the first two report errors with
// longjmp, which must not leave a C++ object behind: the functions that may jump have none.
#pragma once

#include <torch/types.h>

#include <cstdint>
#include <functional>
#include <string>

namespace vernier {

// `refuse` throws Error for the image.
using RefuseImage = std::function<void(const std::string& reason)>;

struct DecodedImage {
  torch::Tensor pixels;
  int orientation = 1;  // EXIF's number, 1 to 8: how a camera held the image when it stored it
};

DecodedImage decode_png(const std::string& bytes, std::int64_t channels, std::int64_t max_pixels,
                        const RefuseImage& refuse);
DecodedImage decode_jpeg(const std::string& bytes, std::int64_t channels, std::int64_t max_pixels,
                         const RefuseImage& refuse);
DecodedImage decode_webp(const std::string& bytes, std::int64_t channels, std::int64_t max_pixels,
                         const RefuseImage& refuse);

// Memory for the pixels; refuses too many of them.
torch::Tensor pixels_of(std::int64_t height, std::int64_t width, std::int64_t channels, std::int64_t max_pixels,
                        const RefuseImage& refuse);

// Returns pixels [..., 3] in grey, [..., 1], as libpng and libjpeg do it: 0.299 red + 0.587 green + 0.114 blue.
torch::Tensor grey_of(const torch::Tensor& pixels);

// Returns the orientation that EXIF data name, from their TIFF header on; 1 if they name none.
int exif_orientation(const unsigned char* bytes, std::size_t count);

// Returns the pixels as they are to be seen.
torch::Tensor upright(const DecodedImage& image);

}  // namespace vernier
