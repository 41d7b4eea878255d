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
// end in LF or CRLF. The text is UTF-8, with or without a byte-order mark. Spaces around a field without quotes are
// dropped. Empty lines at the end of the file are ignored.
#pragma once

#include <vernier/abi.h>
#include <vernier/dataset.h>
#include <vernier/tensor.h>

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace vernier {

enum class CsvType { number, category };
enum class CsvFill { refuse, mean, zero };

struct CsvOptions {
  char separator = ',';              // also ';' and '\t'
  bool header = true;                // the first record has the names; else the columns are named "1", "2", …
  std::vector<std::string> columns;  // the inputs, in this order; none: all but the target, as in the file
  std::string target;                // what is to be predicted; "": nothing
  // Types by name. For a column that is not here the first 1000 records decide: all numbers, or all text. A column with
  // both is refused.
  std::map<std::string, CsvType> types;

  std::vector<std::string> missing = {"", "NA", "N/A", "NaN", "nan", "NULL", "null", "?"};  // words for "no value"
  CsvFill fill = CsvFill::refuse;  // a missing number becomes the mean of its column, or 0; a category becomes ""
  bool sorted = false;             // the vocabularies are sorted by bytes; else in the order of first appearance
  bool unknown = false;  // an input's category that the schema lacks gets the code vocabulary.size(); else refused
};

struct CsvColumn {
  std::string name;
  CsvType type = CsvType::number;
  std::vector<std::string> vocabulary;  // of a category: the code i stands for vocabulary[i]
  std::optional<float> fill;            // of a number: the value of a missing one; nullopt: it is refused
};

// The parts that must be the same for training, validation and prediction. Save it with the model.
struct CsvSchema {
  std::vector<CsvColumn> columns;   // the inputs
  std::optional<CsvColumn> target;  // reset it to read a file without a target
};

struct VERNIER_API CsvTable {
  torch::Tensor numbers;     // float32 [rows, columns of type number], as in schema.columns
  torch::Tensor categories;  // int64 [rows, columns of type category], as in schema.columns
  torch::Tensor target;      // float32 [rows], or int64 [rows] for a category; undefined without a target
  CsvSchema schema;

  std::string where(std::int64_t row) const;  // "'train.csv' line 17"

  std::string path;
  std::int64_t first_line = 1;  // of row 0
  // Rows of several lines, and the lines added up to each.
  std::vector<std::pair<std::int64_t, std::int64_t>> long_rows;
};

// Any thread may call the functions. read_csv() uses LibTorch's number of threads and the memory of the result; the
// file is mapped. Throws Error, which names the file and where possible line and column, for: a file that cannot be
// read, is empty or changes meanwhile; records of different length; a wrong quote; a name that is missing or occurs
// twice; text where a number belongs; numbers that are infinite or too large for float32; missing values unless filled;
// a missing target; an unknown category. float32 has 24 bits: make a column of longer whole numbers a category.
VERNIER_API CsvTable read_csv(const std::string& path, const CsvOptions& options = {});

// The same with the columns, types, vocabularies and fill values of another file. It finds columns by name. Of the
// options it uses separator, header, missing and unknown, and for missing categories fill. A file without header and
// target has all inputs of one with the target, in the same order.
VERNIER_API CsvTable read_csv(const std::string& path, const CsvSchema& schema, const CsvOptions& options = {});

// Sample i is {numbers[i]}, then categories[i] if there are such columns, then target[i] if there is a target.
VERNIER_API DatasetPtr csv_dataset(CsvTable table);

}  // namespace vernier
