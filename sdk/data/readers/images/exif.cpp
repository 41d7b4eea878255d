// The orientation in EXIF 2.3 (JEITA CP-3451C): tag 0x0112 of the first directory, one number of 16 bits.
#include "decoders.h"

namespace vernier {

namespace {

// Numbers of a TIFF file in its order of bytes. A place beyond its end reads as 0.
class TiffNumbers {
 public:
  TiffNumbers(const unsigned char* bytes, std::size_t count) : bytes_(bytes), count_(count) {
    is_big_endian_ = at(0) == 'M';
  }
  std::uint32_t at(std::size_t place) const { return place < count_ ? bytes_[place] : 0; }
  std::uint32_t two(std::size_t place) const {
    return is_big_endian_ ? at(place) << 8 | at(place + 1) : at(place + 1) << 8 | at(place);
  }
  std::uint32_t four(std::size_t place) const {
    return is_big_endian_ ? two(place) << 16 | two(place + 2) : two(place + 2) << 16 | two(place);
  }

 private:
  const unsigned char* bytes_;
  std::size_t count_;
  bool is_big_endian_ = false;
};

}  // namespace

int exif_orientation(const unsigned char* bytes, std::size_t count) {
  const TiffNumbers numbers(bytes, count);
  const bool is_tiff = numbers.at(0) == numbers.at(1) && (numbers.at(0) == 'I' || numbers.at(0) == 'M');
  constexpr std::size_t entry_bytes = 12;
  if (!is_tiff || numbers.two(2) != 42) return 1;
  const std::size_t directory = numbers.four(4);
  if (directory >= count) return 1;
  for (std::size_t i = 0; i < numbers.two(directory); ++i) {
    const auto entry = directory + 2 + i * entry_bytes;
    if (numbers.two(entry) != 0x0112) continue;
    const auto orientation = static_cast<int>(numbers.two(entry + 8));
    return orientation >= 1 && orientation <= 8 ? orientation : 1;
  }
  return 1;
}

torch::Tensor upright(const DecodedImage& image) {
  // 5 to 8 have rows and columns exchanged. Then 2, 3, 6 and 7 are mirrored left to right, 3, 4, 7 and 8 upside down.
  auto pixels = image.orientation >= 5 ? image.pixels.transpose(0, 1) : image.pixels;
  const auto o = image.orientation;
  if (o == 2 || o == 3 || o == 6 || o == 7) pixels = pixels.flip({1});
  if (o == 3 || o == 4 || o == 7 || o == 8) pixels = pixels.flip({0});
  return pixels;
}

}  // namespace vernier
