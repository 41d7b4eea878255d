// Formats that are not read, each with the line that converts it.
#include <vernier/data/csv.h>
#include <vernier/data/readers.h>
#include <vernier/error.h>
#include <vernier/missing_file.h>

#include <filesystem>
#include <fstream>

#include "findings.h"

namespace vernier {

namespace fs = std::filesystem;

namespace {

// Returns a file's format by its bytes, or else by its name. Files that Vernier reads are left out, such as .npz,
// because they may be archives too.
std::optional<OtherFormat> format_of(const std::string& path) {
  constexpr std::string_view read = ".npy .npz .safetensors .pt .pt2 .pth ";
  if (read.find(ending_of(path) + " ") != std::string_view::npos) return {};
  std::string begin(512, '\0');
  std::ifstream file(path, std::ios::binary);
  file.read(begin.data(), std::ssize(begin));
  begin.resize(static_cast<std::size_t>(file.gcount()));
  auto format = other_format(begin, path, is_text(path) ? ConvertTo::text : ConvertTo::table);
  if (format && format->name == "packed by gzip") return {};
  if (!format || format->remedy.empty()) format = other_format("", path, ConvertTo::table);
  return format;
}

}  // namespace

void require_readable(const std::string& path) {
  std::error_code none;
  if (!fs::exists(path, none) && !csv_files(path).empty()) {
    refuse("'" + path + "' names several files; name one of them, and write the pattern as `data` into the TOML file");
  }
  if (!fs::exists(path, none)) refuse("'" + path + "' does not exist" + missing_file_hint(path));
  if (fs::is_directory(path, none)) return;
  if (!fs::is_regular_file(path, none)) refuse("'" + path + "' is not a regular file; only those are read");
  const auto format = format_of(path);
  if (format) refuse("'" + path + "' is " + format->name + ", which is not read; " + format->remedy);
}

}  // namespace vernier
