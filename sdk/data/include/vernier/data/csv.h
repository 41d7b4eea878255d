// Tables in CSV files, as tensors or as a dataset.
//
//   vernier::CsvOptions options;
//   options.target = "price";
//   options.types = {{"postcode", vernier::CsvType::category}};
//   const auto table = vernier::read_csv("train.csv", options);
//   auto training = vernier::csv_dataset(table);
//   auto held_out = vernier::csv_dataset(vernier::read_csv("test.csv", table.schema, options));
//
// The format is RFC 4180: a field may be in quotes, and then have separators, line ends and doubled quotes in it. Lines
// end in LF or CRLF. The text is UTF-8, with or without a byte-order mark, or Latin-1; it may be compressed by gzip.
// Spaces around a field without quotes are dropped. Empty lines at the end of the file are ignored.
#pragma once

#include <vernier/abi.h>
#include <vernier/data/csv_schema.h>
#include <vernier/data/dataset.h>
#include <vernier/options.h>
#include <vernier/tensor.h>

#include <cstdint>
#include <initializer_list>
#include <string>
#include <utility>
#include <vector>

namespace vernier {

// Facts of a file, to be shown.
struct CsvFound {
  char separator = ',';
  std::vector<std::string> left_out;                         // columns that are neither inputs nor the target
  std::vector<std::pair<std::string, std::int64_t>> filled;  // columns with missing values, and how many
  std::int64_t dropped = 0;                                  // rows that CsvTable::rows lacks
  std::vector<std::string> odd;  // sentences on inputs: constant ones, nearly a word a row, row numbers, unknown words
  std::vector<std::string> named;      // columns that CsvOptions::names made a category
  std::vector<std::string> row_names;  // inputs that count the rows or name nearly each: they say nothing of other rows
};

struct VERNIER_API CsvTable {
  torch::Tensor numbers;     // float64 [rows, numbers], as numbers_of() the columns in schema.columns
  torch::Tensor categories;  // int64 [rows, columns of type category], as in schema.columns
  torch::Tensor target;      // float64 [rows], or int64 [rows] for a category; undefined without a target
  torch::Tensor groups;      // int64 [rows]: equal numbers for equal words in CsvOptions::group; or undefined
  torch::Tensor rows;        // int64: the rows to use, in order: all but the dropped ones, which have NaN or -1
  CsvSchema schema;
  CsvFound found;

  std::string where(std::int64_t row) const;  // "'train.csv' line 17"

  // first_row is the file's first row in the table, and first_line the line of that row.
  struct File {
    std::string path;
    std::int64_t first_row = 0, first_line = 1;
  };
  std::string path;
  std::int64_t first_line = 1;   // line of row 0
  std::vector<File> more_files;  // the files behind `path`, if a pattern named several
  // Rows of several lines, and the lines added up to each in its file.
  std::vector<std::pair<std::int64_t, std::int64_t>> long_rows;
};

// A path with *, ? or [ names all files that it matches, as in a shell: "flats-*.csv". They are read as one file, in
// the order of their paths, where numbers count as numbers: part-2 comes before part-10. All must have the same
// columns. If a file has the pattern itself as its path, it is read alone.
//
// Any thread may call the functions. read_csv() uses LibTorch's number of threads and the memory of the result; the
// file is mapped. Throws Error, which names the file and where possible line and column, for: a file that cannot be
// read, is empty, is not a text or changes meanwhile; records of different length; a wrong quote; a name that is
// missing or occurs twice; text where a number belongs; numbers that are infinite or too large for float32; missing
// values unless filled; an unknown category. Remedies are keys of task/tabular in TOML. Numbers are float64, so that a
// mean can be taken off before they become float32. CsvFound::odd names whole numbers that become equal even then.
VERNIER_API CsvTable read_csv(const std::string& path, const CsvOptions& options = {});

// The same with the columns, types, vocabularies and fill values of another file. It finds columns by name. Of the
// options it uses those of the text, missing, unknown, types of dates, and fill where the schema has none; others that
// contradict the schema are refused. A file without a header has as many columns as that of the schema; without the
// target also one fewer, or the inputs alone in the order of the schema. A category of which all of at least 20 rows
// are unknown is refused, unless nearly each has a word of its own.
VERNIER_API CsvTable read_csv(const std::string& path, const CsvSchema& schema, const CsvOptions& options = {});

// Returns the files that a path or a pattern names, in the order in which read_csv() reads them. Empty: there is none.
VERNIER_API std::vector<std::string> csv_files(const std::string& path);

// The sample of each row is {numbers}, then categories if there are such columns, then target if there is a target.
VERNIER_API DatasetPtr csv_dataset(CsvTable table);

// Reads a task's options of CSV files: types, missing, missing_words, separator, decimal, thousands, encoding, header
// and skip_lines. fills: the words of `missing`: "refuse" and others of CsvFill. Vocabularies are sorted.
VERNIER_API CsvOptions csv_options(Options& options, std::initializer_list<const char*> fills);

// The meaning of a column's name: it stands for rows (id, patient, rownames), may count them (no, index, X), has no
// words, is a time (year, day), or another order (age, rank).
enum class CsvName { other, row, number, none, time, order };
VERNIER_API CsvName meaning_of(const std::string& column);

// Returns the names of columns, divided by commas: '' is one without a name.
VERNIER_API std::string names_of_columns(std::vector<std::string> names);
// Returns a column's name as a key of TOML: a, or "two words".
VERNIER_API std::string toml_key(const std::string& name);

}  // namespace vernier
