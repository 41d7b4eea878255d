// The columns of CSV files, and how they are read. csv.h has the functions.
#pragma once

#include <vernier/abi.h>
#include <vernier/tensor.h>

#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <vector>

namespace vernier {

struct CsvTable;

// day_first and month_first are given for dates such as 03/04/2024; a column that was read is a `date`.
enum class CsvType { number, category, date, day_first, month_first };
enum class CsvFill { refuse, mean, zero, previous, drop };

struct CsvOptions {
  char separator = 0;                  // one of , ; | tab and blank; 0: the one that divides all records alike
  std::int64_t skip_lines = 0;         // lines before the header or the first record
  bool header = true;                  // the first record has the names; else the columns are named "1", "2", …
  bool is_latin1 = false;              // the text is Latin-1 (Windows-1252), not UTF-8
  char decimal = '.';                  // before the decimals of a number
  char thousands = 0;                  // between groups of three digits
  std::vector<std::string> columns;    // the inputs, in this order; none: all but the target, as in the file
  std::vector<std::string> leave_out;  // columns that are not inputs
  std::string target;                  // the column to predict; "": none
  std::string group;                   // the column of CsvTable::groups, not an input; "": none
  // Types by name. For a column that is not here the first 1000 records decide: all numbers, all dates, or all words.
  // A column of numbers and words is refused, and so are numbers in another notation, such as "3,50" or "$5". For a
  // number that is given here signs of currencies and % are skipped.
  std::map<std::string, CsvType> types;
  bool classes = false;  // a target of whole numbers with few different values is a category
  bool names = false;    // names among whole numbers, "rotary" among 4 and 6, make a category; all records decide

  // A first record that looks like data is refused, and so is a column where "2.085" may be 2085.
  bool doubts_header = false, doubts_points = false;

  std::vector<std::string> missing = {"",     "NA",   "N/A", "NaN", "nan", "NULL",
                                      "null", "#N/A", "n/a", "NaT", "?"};  // words for "no value"
  // A missing number becomes the mean of its column, 0, or the number of the row before, in the first rows the next
  // one; a category becomes "". drop: CsvTable::rows lacks the row. Rows without a target are dropped too, unless
  // missing values are refused.
  CsvFill fill = CsvFill::refuse;
  bool sorted = false;   // the vocabularies are sorted; else in the order of first appearance
  bool unknown = false;  // an input's category that the schema lacks gets the code vocabulary.size(); else refused
  // Chooses the rows that means and words of inputs are learned from, out of CsvTable::rows, after all rows were read.
  // Words that only other rows have are unknown. Not set: all rows.
  std::function<torch::Tensor(const CsvTable& table)> training_rows;
  // The advice of a message on a missing value, with {} for the column; "": there is none.
  std::string fill_remedy = R"(set missing = "mean", "zero" or "drop", or leave_out = ["{}"])";
};

struct CsvColumn {
  std::string name;
  CsvType type = CsvType::number;
  std::vector<std::string> vocabulary = {};  // category: the code i stands for vocabulary[i]
  std::optional<double> fill = {};           // number: the value of a missing one; nullopt: it is refused
  bool has_signs = false;                    // number: signs of currencies and % are skipped
  std::string form = {};                     // date: "year-month-day", "day-month-year hour", …
  std::vector<double> fills = {};            // date: the values of the parts of a missing one
  std::vector<double> means = {};            // number or date: means of the training rows, as numbers_of(); or none
};

// The parts that must be the same for training, validation and prediction. Save it with the model.
struct CsvSchema {
  std::vector<CsvColumn> columns;   // the inputs
  std::optional<CsvColumn> target;  // reset it to read a file without a target
  std::int64_t width = 0;           // columns of the file, others included, if it has no header; else 0
};

// The numbers that a column becomes: itself; or of a date: days since 1970-01-01 (with the part of the day), year,
// month, day, day of the week from Monday = 0, day of the year, and if there are times the hour. A category has
// none.
VERNIER_API std::vector<std::string> numbers_of(const CsvColumn& column);

// The schema as a JSON object, and back. parse_csv_schema() throws Error for other texts.
VERNIER_API std::string json_of(const CsvSchema& schema);
VERNIER_API CsvSchema parse_csv_schema(const std::string& json);

}  // namespace vernier
