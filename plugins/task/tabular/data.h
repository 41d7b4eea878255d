// The data of task/tabular: what it learns of them, and how they are read.
#pragma once

#include <vernier/data/csv.h>
#include <vernier/data/dataset.h>
#include <vernier/data/split.h>
#include <vernier/tensor.h>

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "network.h"

namespace tabular {

// Facts that a model needs of its training data besides the weights.
struct Facts {
  bool is_array = false, is_classification = false;
  vernier::CsvSchema schema;             // CSV: the schema
  std::int64_t numbers = 0;              // array: the number of columns
  std::vector<std::string> missing;      // CSV: words for "no value"
  std::string decimal = ".", thousands;  // CSV: separators in its numbers
  bool fills = false;                    // CSV: a category without a value is one of its own
  std::vector<std::string> classes;      // in the order of the outputs
  std::vector<std::int64_t> counts;      // training rows of each class
  std::int64_t rows = 0;                 // to train on
  std::string fingerprint;               // identifies the data, held-out rows included

  std::string json() const;
  static Facts parse(const std::string& json);
  void put_columns(Shape& shape) const;
  void read_as(const vernier::CsvOptions& options);  // before json(), whose reader is to read rows as the task does
  std::string target() const { return schema.target ? schema.target->name : ""; }
};

// The samples of a file.
struct Data {
  vernier::DatasetPtr dataset;
  torch::Tensor numbers, targets, rows;  // numbers, targets: all samples; rows: numbers of the samples to use
  torch::Tensor groups;
  vernier::CsvFound found;
  bool guessed_classes = false, guessed_numbers = false;  // whole numbers became classes, or stayed numbers
};

Data data_of(vernier::CsvTable table);

// The rows of each class.
std::vector<std::int64_t> counts_of(const torch::Tensor& codes, std::size_t classes);
// Returns whether all words are whole numbers.
bool are_whole(const std::vector<std::string>& words);

// Calls work() with some rows of a matrix, as index_select() gives them. Rows in ascending order are not copied: they
// move to the front of the matrix meanwhile, and then back.
void with_rows(const torch::Tensor& matrix, const torch::Tensor& rows,
               const std::function<void(const torch::Tensor&)>& work);

// Numbers of an array, float32 or float64. columns: the number there must be; 0: any.
torch::Tensor read_numbers(const std::string& path, std::int64_t columns);

// An array and its targets. With is_first it learns the facts, where kind is "auto", "classification" or
// "regression"; else it takes the classes from them.
Data read_arrays(const std::string& path, const std::string& targets, const std::string& kind, bool is_first,
                 Facts& facts);

// "classification of 3 classes (a 5, b 3); 8 rows, 5 numbers, 2 categories: island 3, sex 2; left out: none"
std::string summary(const Facts& facts, const Data& data);

// Refuses a target that cannot be learned: one class, nearly a class for each row, always the same number. Returns
// sentences on odd ones. file: for messages.
std::vector<std::string> check_target(const Facts& facts, const Data& data, const vernier::SplitRows& split,
                                      const std::string& file);

}  // namespace tabular
