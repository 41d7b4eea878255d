// Folders of small PNG files, one for each class.
#pragma once

#include <zlib.h>

#include <cstdint>
#include <string>

#include "temporary_folder.h"

// A PNG file of height x width x channels bytes, red, green and blue or grey.
inline std::string png(std::uint32_t height, std::uint32_t width, std::uint32_t channels, const std::string& bytes) {
  const auto big_endian = [](std::uint32_t number) {
    std::string text;
    for (const int shift : {24, 16, 8, 0}) text += static_cast<char>(number >> shift & 255);
    return text;
  };
  const auto chunk = [&](const std::string& kind, const std::string& data) {
    const auto both = kind + data;
    const auto sum = crc32(0, reinterpret_cast<const Bytef*>(both.data()), static_cast<uInt>(both.size()));
    return big_endian(static_cast<std::uint32_t>(data.size())) + both + big_endian(static_cast<std::uint32_t>(sum));
  };
  std::string rows;
  for (std::uint32_t y = 0; y < height; ++y) rows += '\0' + bytes.substr(y * width * channels, width * channels);
  auto size = compressBound(rows.size());
  std::string packed(size, '\0');
  compress(reinterpret_cast<Bytef*>(packed.data()), &size, reinterpret_cast<const Bytef*>(rows.data()), rows.size());
  packed.resize(size);
  const char kind = channels == 3 ? '\2' : '\0';
  return "\x89PNG\r\n\x1a\n" +
         chunk("IHDR", big_endian(width) + big_endian(height) + '\10' + kind + std::string(3, '\0')) +
         chunk("IDAT", packed) + chunk("IEND", "");
}

// Pixel i of the image `number`: left half dark for even numbers, right half for odd ones; every number is different.
inline std::string striped(std::uint32_t number, std::uint32_t height, std::uint32_t width) {
  std::string bytes;
  for (std::uint32_t i = 0; i < height * width; ++i) {
    const bool is_dark = (i % width < width / 2) == (number % 2 == 0);
    for (std::uint32_t channel = 0; channel < 3; ++channel) {
      bytes += static_cast<char>(is_dark ? 5 + number + channel : 200 + number + i % 3 - channel);
    }
  }
  return bytes;
}

// Folders `root`/left and `root`/right with `count` images each.
inline std::string write_stripes(const TemporaryFolder& folder, const std::string& root, std::uint32_t count,
                                 std::uint32_t height = 8, std::uint32_t width = 10) {
  for (std::uint32_t i = 0; i < 2 * count; ++i) {
    folder.write(root + (i % 2 == 0 ? "/left/" : "/right/") + std::to_string(100 + i) + ".png",
                 png(height, width, 3, striped(i, height, width)));
  }
  return folder / root;
}
