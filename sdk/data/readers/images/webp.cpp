#include <ATen/ops/empty.h>
#include <webp/decode.h>

#include <cstring>

#include "decoders.h"

namespace vernier {

namespace {

// The chunks of a RIFF file: four letters, their size in little endian, the data, a byte more if the size is odd.
int webp_orientation(const std::string& bytes) {
  const auto* data = reinterpret_cast<const unsigned char*>(bytes.data());
  constexpr std::size_t first_chunk = 12, chunk_head = 8;
  for (std::size_t at = first_chunk; at + chunk_head <= bytes.size();) {
    const auto* size = data + at + 4;
    const std::size_t count = size[0] | size[1] << 8 | size[2] << 16 | static_cast<std::size_t>(size[3]) << 24;
    const auto left = bytes.size() - at - chunk_head;
    if (std::memcmp(data + at, "EXIF", 4) == 0 && count <= left) {
      const auto* exif = data + at + chunk_head;
      const bool has_name = count > 6 && std::memcmp(exif, "Exif\0\0", 6) == 0;  // some programs write the name
      return has_name ? exif_orientation(exif + 6, count - 6) : exif_orientation(exif, count);
    }
    if (count >= left) return 1;
    at += chunk_head + count + count % 2;
  }
  return 1;
}

}  // namespace

DecodedImage decode_webp(const std::string& bytes, std::int64_t channels, std::int64_t max_pixels,
                         const RefuseImage& refuse) {
  const auto* data = reinterpret_cast<const std::uint8_t*>(bytes.data());
  WebPBitstreamFeatures features;
  const auto status = WebPGetFeatures(data, bytes.size(), &features);
  if (status == VP8_STATUS_NOT_ENOUGH_DATA) refuse("is a damaged WebP: it is cut short");
  if (status != VP8_STATUS_OK) refuse("is a damaged WebP");
  if (features.has_animation != 0) refuse("is an animated WebP; save one of its pictures");
  auto pixels = pixels_of(features.height, features.width, 3, max_pixels, refuse);
  if (WebPDecodeRGBInto(data, bytes.size(), pixels.mutable_data_ptr<std::uint8_t>(), pixels.nbytes(),
                        static_cast<int>(pixels.stride(0))) == nullptr) {
    refuse("is a damaged WebP, or cut short");
  }
  return {channels == 1 ? grey_of(pixels) : pixels, webp_orientation(bytes)};
}

}  // namespace vernier
