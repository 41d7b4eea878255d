// Formats that are not read, known by their first bytes, each with the command that converts it.
#include <vernier/data/readers.h>

#include <algorithm>
#include <cctype>
#include <filesystem>
#include <iterator>

#include "gunzip.h"

namespace vernier {

namespace {

using namespace std::string_view_literals;

// begin, inside: the first bytes, and a text among those behind them. endings: of names, each with a blank behind it.
// how: Python that gives a table of pandas or saves arrays, a program that unpacks, or a command that unpacks an
// archive, before the name of its folder; {} is the path.
struct Format {
  std::string_view begin, inside, endings;
  const char *name, *how;
};

constexpr Format formats[] = {
    {"PAR1"sv, "", ".parquet .pq ", "a Parquet file", "import pandas; pandas.read_parquet('{}')"},
    {"ARROW1"sv, "", ".arrow .ipc ", "an Arrow file", "import pandas; pandas.read_feather('{}')"},
    {"\xff\xff\xff\xff"sv, "\x10\0\0\0\0\0\x0a\0"sv, "", "an Arrow stream, as those of Hugging Face's datasets",
     "import pyarrow; pyarrow.ipc.open_stream('{}').read_pandas()"},
    {"FEA1"sv, "", ".feather ", "a Feather file", "import pandas; pandas.read_feather('{}')"},
    {"\x89HDF"sv, "", ".h5 .hdf5 .hdf ", "an HDF5 file", "import pandas; pandas.read_hdf('{}')"},
    {"ORC"sv, "", ".orc ", "an ORC file", "import pandas; pandas.read_orc('{}')"},
    {"\xd0\xcf\x11\xe0"sv, "", ".xls ", "an old Excel file", "import pandas; pandas.read_excel('{}')"},
    {"PK\x03\x04"sv, "[Content_Types].xml"sv, ".xlsx .ods ", "a sheet of Excel",
     "import pandas; pandas.read_excel('{}')"},
    {"PK\x03\x04"sv, "docProps/"sv, "", "a sheet of Excel", "import pandas; pandas.read_excel('{}')"},
    {"PK\x03\x04"sv, "opendocument.spreadsheet"sv, "", "a sheet of LibreOffice",
     "import pandas; pandas.read_excel('{}')"},
    {"PK\x03\x04"sv, ".npy"sv, "", "a NumPy archive",
     "import numpy; [numpy.save(k, v) for k, v in numpy.load('{}').items()]"},
    {"\x80\x02"sv, "", ".pkl .pickle ", "a pickle of Python", "import pandas; pandas.read_pickle('{}')"},
    {"\x80\x03"sv, "", "", "a pickle of Python", "import pandas; pandas.read_pickle('{}')"},
    {"\x80\x04"sv, "", "", "a pickle of Python", "import pandas; pandas.read_pickle('{}')"},
    {"\x80\x05"sv, "", "", "a pickle of Python", "import pandas; pandas.read_pickle('{}')"},
    {"", "", ".dta ", "a file of Stata", "import pandas; pandas.read_stata('{}')"},
    {"", "", ".sav ", "a file of SPSS", "import pandas; pandas.read_spss('{}')"},
    {"", "", ".sas7bdat .xpt ", "a file of SAS", "import pandas; pandas.read_sas('{}')"},
    {"\x1f\x8b\x08"sv, "", "", "packed by gzip", "gzip -dc {}"},
    {"BZh"sv, "1AY&SY"sv, ".bz2 ", "packed by bzip2", "bzip2 -dc {}"},
    {"\xfd"
     "7zXZ\0"sv,
     "", ".xz ", "packed by xz", "xz -dc {}"},
    {"\x28\xb5\x2f\xfd"sv, "", ".zst ", "packed by Zstandard", "zstd -dc {}"},
    {"\x04\x22\x4d\x18"sv, "", ".lz4 ", "packed by LZ4", "lz4 -dc {}"},
    {"", "", ".tar .tgz ", "a tar archive", "tar -xf {} -C "},
    {"PK\x03\x04"sv, "", ".zip ", "a ZIP archive", "python3 -m zipfile -e {} "},
    {"7z\xbc\xaf"sv, "", ".7z ", "a 7z archive", "7z x {} -o"},
    {"\x89PNG"sv, "", "", "a PNG image", ""},
    {"\xff\xd8\xff"sv, "", "", "a JPEG image", ""},
    {"II*\0"sv, "", "", "a TIFF image", ""},
    {"GIF8"sv, "", "", "a GIF image", ""},
    {"RIFF"sv, "", "", "a WebP, WAV or AVI file", ""},
    {"\x00\x00\x08\x01"sv, "", "", "an IDX file as those of MNIST, which task/images reads", ""},
    {"\x00\x00\x08\x03"sv, "", "", "an IDX file as those of MNIST, which task/images reads", ""},
    {"SQLite format 3"sv, "", "", "an SQLite database", ""},
    {"\x93NUMPY"sv, "", "", "a NumPy array, whose name must end in .npy", ""},
    {"%PDF"sv, "", "", "a PDF", ""}};

bool has_ending(const Format& format, const std::string& path) {
  auto ending = std::filesystem::path(path).extension().string() + " ";
  std::ranges::transform(ending, ending.begin(),
                         [](char c) { return c >= 'A' && c <= 'Z' ? static_cast<char>(c | 0x20) : c; });
  return ending.size() > 2 && format.endings.find(ending) != std::string_view::npos;
}

bool has_bytes(const Format& format, std::string_view begin, const std::string& path) {
  if (format.begin.empty() || !begin.starts_with(format.begin)) return false;
  if (has_ending(format, path)) return true;
  const auto is_letter = [](unsigned char c) { return std::isalnum(c) != 0; };
  const auto is_of_bytes = [](char c) { return static_cast<unsigned char>(c) < '\t'; };
  // A text may begin with the word RIFF.
  if (std::ranges::all_of(format.begin, is_letter) && std::ranges::none_of(begin, is_of_bytes)) return false;
  return begin.substr(format.begin.size(), 128).find(format.inside) != std::string_view::npos;
}

// Two tokens may look like the first bytes of some formats.
bool may_be_tokens(const Format& format) {
  return format.begin.size() < 3 || format.begin[0] == 0;
}

const Format* format_of(std::string_view begin, const std::string& path, ConvertTo kind) {
  const auto* const tar = std::ranges::find(formats, ".tar .tgz ", &Format::endings);
  const bool is_packed_tar = Gunzip::is_packed(begin) && (path.ends_with(".tar.gz") || path.ends_with(".tgz"));
  if (is_packed_tar || (begin.size() > 262 && begin.substr(257, 5) == "ustar")) return tar;
  const auto* found = std::ranges::find_if(formats, [&](const auto& each) {
    return has_bytes(each, begin, path) && (kind != ConvertTo::tokens || !may_be_tokens(each));
  });
  if (found == std::end(formats) && begin.empty()) {
    found = std::ranges::find_if(formats, [&](const auto& each) { return has_ending(each, path); });
  }
  return found == std::end(formats) ? nullptr : found;
}

std::string quoted(const std::string& path) {
  std::string word = "'";
  for (const char c : path) word += c == '\'' ? "'\\''" : std::string(1, c);
  return word + "'";
}

}  // namespace

std::optional<OtherFormat> other_format(std::string_view begin, const std::string& path, ConvertTo kind) {
  const auto* format = format_of(begin.substr(0, 4096), path, kind);
  if (format == nullptr) return {};
  std::string how = format->how;
  if (how.empty()) return OtherFormat{format->name, ""};
  const bool is_python = how.starts_with("import"), is_archive = !is_python && !how.ends_with("{}");
  const bool is_packed = !is_python && !is_archive;
  if (is_python && path.find_first_of("'\"\\$`!\n") != std::string::npos) {
    return OtherFormat{format->name, "give it a name without signs of the shell first"};
  }
  std::filesystem::path to = path;
  if (to.has_extension() && (!is_packed || has_ending(*format, path) || path.ends_with(".gz"))) to.replace_extension();
  if (to.extension() == ".tar" && is_archive) to.replace_extension();
  const auto* ending = is_archive                 ? ""
                       : kind == ConvertTo::table ? ".csv"
                       : is_python                ? ".jsonl"
                       : kind == ConvertTo::text  ? ".txt"
                                                  : ".bin";
  if (to.extension() != ending && !(is_packed && to.has_extension())) to += ending;
  if (to == path) to.replace_filename("converted_" + to.filename().string());  // the file stays
  how.replace(how.find("{}"), 2, is_python ? path : quoted(path));
  const auto out = to.string();
  if (is_archive) return OtherFormat{format->name, "unpack it: mkdir -p " + quoted(out) + " && " + how + quoted(out)};
  if (is_packed) return OtherFormat{format->name, "unpack it: " + how + " > " + quoted(out)};
  const bool saves = how.ends_with("]");
  how += saves                      ? ""
         : kind == ConvertTo::table ? ".to_csv('" + out + "', index=False)"
                                    : ".to_json('" + out + "', orient='records', lines=True)";
  return OtherFormat{format->name, "convert it: python3 -c \"" + how + "\""};
}

}  // namespace vernier
