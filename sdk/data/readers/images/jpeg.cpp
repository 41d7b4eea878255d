#include <csetjmp>
#include <cstdio>
// jpeglib.h needs <cstdio> first.
#include <jerror.h>
#include <jpeglib.h>
#include <vernier/error.h>

#include <cstring>

#include "core/reworded_error.h"
#include "decoders.h"

namespace vernier {

namespace {

struct JpegTrouble {
  jpeg_error_mgr manager;  // libjpeg has its address
  std::jmp_buf back;
  char text[JMSG_LENGTH_MAX];
};

void fail_jpeg(j_common_ptr jpeg) {
  auto* trouble = reinterpret_cast<JpegTrouble*>(jpeg->err);
  trouble->manager.format_message(jpeg, trouble->text);
  std::longjmp(trouble->back, 1);
}

// libjpeg makes up the missing pixels of a damaged image and only warns. Three warnings are about no pixel.
void judge_jpeg_warning(j_common_ptr jpeg, int level) {
  constexpr int warning = -1;
  const int code = jpeg->err->msg_code;
  if (level != warning || code == JWRN_EXTRANEOUS_DATA || code == JWRN_JFIF_MAJOR || code == JWRN_ADOBE_XFORM) return;
  fail_jpeg(jpeg);
}

void write_no_message(j_common_ptr) {}

bool start_jpeg(jpeg_decompress_struct* jpeg, JpegTrouble* trouble, const char* bytes, std::size_t count) {
  if (setjmp(trouble->back) != 0) return false;
  jpeg_create_decompress(jpeg);
  jpeg_mem_src(jpeg, reinterpret_cast<const unsigned char*>(bytes), static_cast<unsigned long>(count));
  jpeg_save_markers(jpeg, JPEG_APP0 + 1, 0xffff);
  jpeg_read_header(jpeg, TRUE);
  return true;
}

int jpeg_orientation(const jpeg_decompress_struct& jpeg) {
  constexpr unsigned name_bytes = 6;
  for (const auto* marker = jpeg.marker_list; marker != nullptr; marker = marker->next) {
    if (marker->data_length < name_bytes || std::memcmp(marker->data, "Exif\0\0", name_bytes) != 0) continue;
    return exif_orientation(marker->data + name_bytes, marker->data_length - name_bytes);
  }
  return 1;
}

bool read_jpeg_rows(jpeg_decompress_struct* jpeg, JpegTrouble* trouble, unsigned char* pixels, std::size_t row_bytes,
                    bool is_grey) {
  if (setjmp(trouble->back) != 0) return false;
  jpeg->out_color_space = is_grey ? JCS_GRAYSCALE : JCS_RGB;
  jpeg_start_decompress(jpeg);
  while (jpeg->output_scanline < jpeg->output_height) {
    auto* row = pixels + jpeg->output_scanline * row_bytes;
    jpeg_read_scanlines(jpeg, &row, 1);
  }
  jpeg_finish_decompress(jpeg);
  return true;
}

// Frees libjpeg's memory.
struct JpegReader {
  JpegReader() {
    jpeg.err = jpeg_std_error(&trouble.manager);
    trouble.manager.error_exit = fail_jpeg;
    trouble.manager.emit_message = judge_jpeg_warning;
    trouble.manager.output_message = write_no_message;
  }
  JpegReader(const JpegReader&) = delete;
  JpegReader& operator=(const JpegReader&) = delete;
  ~JpegReader() { jpeg_destroy_decompress(&jpeg); }
  JpegTrouble trouble = {};
  jpeg_decompress_struct jpeg = {};
};

}  // namespace

DecodedImage decode_jpeg(const std::string& bytes, std::int64_t channels, std::int64_t max_pixels,
                         const RefuseImage& refuse) {
  JpegReader reader;
  const auto refuse_damaged = [&] {
    refuse("is a damaged JPEG: " + reworded_error(reader.trouble.text, "its data are damaged"));
  };
  if (!start_jpeg(&reader.jpeg, &reader.trouble, bytes.data(), bytes.size())) refuse_damaged();
  const auto colours = reader.jpeg.jpeg_color_space;
  if (colours == JCS_CMYK || colours == JCS_YCCK) refuse("is a JPEG in CMYK; convert it to RGB");
  const int orientation = jpeg_orientation(reader.jpeg);  // before the end, which drops the markers
  auto pixels = pixels_of(reader.jpeg.image_height, reader.jpeg.image_width, channels, max_pixels, refuse);
  if (!read_jpeg_rows(&reader.jpeg, &reader.trouble, pixels.mutable_data_ptr<std::uint8_t>(),
                      static_cast<std::size_t>(pixels.stride(0)), channels == 1)) {
    refuse_damaged();
  }
  return {pixels, orientation};
}

}  // namespace vernier
