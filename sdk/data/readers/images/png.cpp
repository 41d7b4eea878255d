#include <png.h>
#include <vernier/error.h>

#include <cstdio>
#include <cstring>

#include "core/reworded_error.h"
#include "decoders.h"

namespace vernier {

namespace {

struct PngBytes {
  const char* at;
  std::size_t left;
};

struct PngTrouble {
  char text[200];
};

void fail_png(png_structp png, png_const_charp reason) {
  auto* trouble = static_cast<PngTrouble*>(png_get_error_ptr(png));
  std::snprintf(trouble->text, sizeof trouble->text, "%s", reason);
  png_longjmp(png, 1);
}

void ignore_png_warning(png_structp, png_const_charp) {}

void read_png_bytes(png_structp png, png_bytep to, std::size_t count) {
  auto* bytes = static_cast<PngBytes*>(png_get_io_ptr(png));
  if (count > bytes->left) png_error(png, "it is cut short");
  std::memcpy(to, bytes->at, count);
  bytes->at += count;
  bytes->left -= count;
}

// Converts to `channels` channels of 8 bits. 0 keeps the numbers of a mask, and 1 is for files without colours. Returns
// the number of passes (7 if interlaced), or 0 after an error.
int start_png(png_structp png, png_infop info, std::int64_t channels) {
  if (setjmp(png_jmpbuf(png)) != 0) return 0;
  png_read_info(png, info);
  if (channels == 0) {
    png_set_packing(png);
    const int passes = png_set_interlace_handling(png);
    png_read_update_info(png, info);
    return passes;
  }
  png_set_expand(png);
  png_set_strip_16(png);
  png_set_strip_alpha(png);
  if (channels == 3) png_set_gray_to_rgb(png);
  const int passes = png_set_interlace_handling(png);
  png_read_update_info(png, info);
  return passes;
}

bool read_png_rows(png_structp png, png_bytep pixels, png_uint_32 height, std::size_t row_bytes, int passes) {
  if (setjmp(png_jmpbuf(png)) != 0) return false;
  for (int pass = 0; pass < passes; ++pass) {
    for (png_uint_32 row = 0; row < height; ++row) png_read_row(png, pixels + row * row_bytes, nullptr);
  }
  png_read_end(png, nullptr);
  return true;
}

int png_orientation(png_structp png, png_infop info) {
  png_uint_32 count = 0;
  png_bytep exif = nullptr;
  return png_get_eXIf_1(png, info, &count, &exif) == 0 || exif == nullptr ? 1 : exif_orientation(exif, count);
}

// Frees libpng's structures.
struct PngReader {
  PngReader() : png(png_create_read_struct(PNG_LIBPNG_VER_STRING, &trouble, fail_png, ignore_png_warning)) {
    if (png != nullptr) info = png_create_info_struct(png);
  }
  PngReader(const PngReader&) = delete;
  PngReader& operator=(const PngReader&) = delete;
  ~PngReader() { png_destroy_read_struct(&png, &info, nullptr); }
  PngTrouble trouble = {};
  png_structp png;
  png_infop info = nullptr;
};

// The bytes of compressed pixels in a file.
std::size_t pixel_bytes(const std::string& file) {
  const auto byte = [&](std::size_t at) { return static_cast<std::size_t>(static_cast<unsigned char>(file[at])); };
  std::size_t sum = 0;
  for (std::size_t at = 8; at + 8 <= file.size();) {
    const auto size = byte(at) << 24 | byte(at + 1) << 16 | byte(at + 2) << 8 | byte(at + 3);
    if (file.compare(at + 4, 4, "IDAT") == 0) sum += size;
    at += size + 12;  // with length, type and checksum
  }
  return sum;
}

// Returns the colour of a number as PASCAL VOC's development kit has it: its bits, dealt to red, green and blue, are
// the upper bits of each.
png_color colour_of(int number) {
  png_color colour = {0, 0, 0};
  for (int bit = 7; number > 0; --bit, number >>= 3) {
    colour.red |= static_cast<png_byte>((number & 1) << bit);
    colour.green |= static_cast<png_byte>((number >> 1 & 1) << bit);
    colour.blue |= static_cast<png_byte>((number >> 2 & 1) << bit);
  }
  return colour;
}

}  // namespace

void write_mask(const std::string& path, const torch::Tensor& numbers) {
  if (numbers.dim() != 2 || numbers.scalar_type() != torch::kUInt8 || numbers.numel() == 0) {
    refuse(c10::str("a mask is uint8 [height, width], not ", numbers.scalar_type(), " ", numbers.sizes()));
  }
  const auto pixels = numbers.to(torch::kCPU).contiguous();
  png_color palette[256];
  for (int i = 0; i < 256; ++i) palette[i] = colour_of(i);
  png_image image = {};
  image.version = PNG_IMAGE_VERSION;
  image.height = static_cast<png_uint_32>(numbers.size(0)), image.width = static_cast<png_uint_32>(numbers.size(1));
  image.format = PNG_FORMAT_RGB_COLORMAP, image.colormap_entries = 256;
  png_image_write_to_file(&image, path.c_str(), /*convert_to_8bit=*/0, pixels.const_data_ptr<std::uint8_t>(), 0,
                          palette);
  if (PNG_IMAGE_FAILED(image)) throw Error(path + ": cannot be written: " + image.message);
}

DecodedImage decode_png(const std::string& bytes, std::int64_t channels, std::int64_t max_pixels,
                        const RefuseImage& refuse) {
  PngReader reader;
  if (reader.info == nullptr) refuse("cannot be decoded: there is no memory left");
  PngBytes rest{bytes.data(), bytes.size()};
  png_set_read_fn(reader.png, &rest, read_png_bytes);
  const auto refuse_damaged = [&] {
    refuse("is a damaged PNG: " + reworded_error(reader.trouble.text, "its data are damaged"));
  };
  constexpr std::size_t depth = 24, kind = 25;  // places in the header: bits a channel, and its colours
  const bool is_mask = bytes.size() > kind && bytes[depth] <= 8 &&
                       (bytes[kind] == PNG_COLOR_TYPE_GRAY || bytes[kind] == PNG_COLOR_TYPE_PALETTE);
  if (channels == 0 && !is_mask) refuse("has colours or 16 bits; a mask is in grey or has a palette, and 8 bits");
  // libpng makes grey of colours in linear light if the file has a gamma, and other formats never do.
  const bool makes_grey = channels == 1 && bytes.size() > kind && (bytes[kind] & PNG_COLOR_MASK_COLOR) != 0;
  if (makes_grey) channels = 3;
  const int passes = start_png(reader.png, reader.info, channels);
  if (passes == 0) refuse_damaged();
  const auto height = png_get_image_height(reader.png, reader.info);
  auto pixels = pixels_of(height, png_get_image_width(reader.png, reader.info), channels, max_pixels, refuse);
  // libpng unpacks what follows the last row, and pixels are never larger than this.
  const auto most = 2 * std::size_t{height} * (png_get_image_width(reader.png, reader.info) * std::size_t{8} + 1);
  if (pixel_bytes(bytes) > most + 65536) refuse("is a damaged PNG: it has far more data than pixels");
  const auto row_bytes = png_get_rowbytes(reader.png, reader.info);
  if (static_cast<std::int64_t>(row_bytes) != pixels.stride(0)) refuse("is a PNG of a kind that is not read");
  if (!read_png_rows(reader.png, pixels.mutable_data_ptr<std::uint8_t>(), height, row_bytes, passes)) {
    refuse_damaged();
  }
  return {makes_grey ? grey_of(pixels) : pixels, png_orientation(reader.png, reader.info)};
}

}  // namespace vernier
