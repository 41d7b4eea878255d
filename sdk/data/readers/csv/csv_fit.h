// Words, fill values and classes, learned once all rows of a table are read.
#pragma once

#include <string>
#include <vector>

namespace vernier {

struct CsvColumn;
struct CsvOptions;
struct CsvTable;
class MappedFile;

// Sorts words by bytes, but numbers by value if all are numbers.
void sort_words(std::vector<std::string>& words);
bool all_numbers(const std::vector<std::string>& words);

// Refuses -100 among the labels of a source. It is the target that PyTorch's losses leave out, and no class.
void refuse_left_out(const std::string& name, const std::vector<std::string>& labels);

// Makes a category of a target of numbers if they are class_numbers().
void make_classes(CsvTable& table);

// Makes CsvTable::rows, and counts missing values. They are NaN and the word "".
void drop_rows(CsvTable& table, const CsvOptions& options);

// Applies to a column of a schema the options that may change for another file. Throws Error for those that cannot.
void use_options(CsvColumn& column, const CsvOptions& options, const MappedFile& file);

// Learns words and means from the training rows, unless a schema has them, and fills missing values.
void learn_and_fill(CsvTable& table, const CsvOptions& options, bool has_schema, const MappedFile& file);

}  // namespace vernier
