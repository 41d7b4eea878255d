// Formats that are not read, each with the line of Python that converts it.
#include <vernier/error.h>
#include <vernier/missing_file.h>

#include <algorithm>
#include <array>
#include <cctype>
#include <filesystem>
#include <fstream>

#include "findings.h"

namespace vernier {

namespace fs = std::filesystem;

namespace {

// A format has its first bytes, or "" where endings alone say it; endings of names, each with a blank behind it; a
// name; and the function of pandas that reads it, or "" for an archive.
struct Format {
  std::string_view begin, endings;
  const char *name, *function;
};

constexpr Format formats[] = {{"PAR1", ".parquet .pq ", "a Parquet file", "read_parquet"},
                              {"ARROW1", ".arrow .ipc ", "an Arrow file", "read_feather"},
                              {"FEA1", ".feather ", "a Feather file", "read_feather"},
                              {"\x89HDF", ".h5 .hdf5 .hdf ", "an HDF5 file", "read_hdf"},
                              {"ORC", ".orc ", "an ORC file", "read_orc"},
                              {"", ".xlsx .xls .ods ", "a sheet of Excel", "read_excel"},
                              {"", ".pkl .pickle ", "a pickle of Python", "read_pickle"},
                              {"", ".dta ", "a file of Stata", "read_stata"},
                              {"", ".sav ", "a file of SPSS", "read_spss"},
                              {"", ".sas7bdat .xpt ", "a file of SAS", "read_sas"},
                              {"", ".bz2 .xz .zst ", "a packed file", "read_csv"},
                              {"", ".zip .tar .tgz ", "an archive", ""}};

const Format* format_of(const std::string& path) {
  std::array<char, 8> bytes{};
  std::ifstream file(path, std::ios::binary);
  file.read(bytes.data(), bytes.size());
  const std::string_view begin(bytes.data(), static_cast<std::size_t>(file.gcount()));
  const auto ending = ending_of(path) + " ";
  for (const auto& format : formats) {
    if (!format.begin.empty() && begin.starts_with(format.begin)) return &format;
    if (ending != " " && format.endings.find(ending) != std::string_view::npos) return &format;
  }
  return nullptr;
}

}  // namespace

void require_readable(const std::string& path) {
  std::error_code none;
  if (!fs::exists(path, none)) refuse("'" + path + "' does not exist" + missing_file_hint(path));
  if (fs::is_directory(path, none)) return;
  if (!fs::is_regular_file(path, none)) refuse("'" + path + "' is not a regular file; only those are read");
  const auto* format = format_of(path);
  if (format == nullptr) return;
  const auto stem = fs::path(path).replace_extension().string();
  const bool is_archive = *format->function == 0;
  const auto python = is_archive ? "import shutil; shutil.unpack_archive('" + path + "', '" + stem + "')"
                                 : std::string("import pandas; pandas.") + format->function + "('" + path +
                                       "').to_csv('" + stem + ".csv', index=False)";
  refuse("'" + path + "' is " + format->name + ", which is not read; convert it: python3 -c \"" + python + "\"");
}

}  // namespace vernier
