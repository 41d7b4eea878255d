// Decodes PNG and JPEG to uint8 [height, width, channels]. Their C libraries report errors with longjmp, which must not
// leave a C++ object behind: the functions that may jump have none.
#pragma once

#include <torch/types.h>

#include <cstdint>
#include <functional>
#include <string>

namespace vernier {

// `refuse` throws Error for the image.
using RefuseImage = std::function<void(const std::string& reason)>;

torch::Tensor decode_png(const std::string& bytes, std::int64_t channels, std::int64_t max_pixels,
                         const RefuseImage& refuse);
torch::Tensor decode_jpeg(const std::string& bytes, std::int64_t channels, std::int64_t max_pixels,
                          const RefuseImage& refuse);

// Memory for the pixels; refuses too many of them.
torch::Tensor pixels_of(std::int64_t height, std::int64_t width, std::int64_t channels, std::int64_t max_pixels,
                        const RefuseImage& refuse);

}  // namespace vernier
