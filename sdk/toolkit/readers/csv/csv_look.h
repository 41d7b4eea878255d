// The types of columns, from what their first records have.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "csv_parser.h"
#include "csv_values.h"

namespace vernier {

struct CsvColumn;
struct CsvOptions;

// Counts of the values of a column. Missing ones are in none.
struct SeenColumn {
  std::int64_t numbers = 0, texts = 0, dates = 0;
  std::int64_t looks[7] = {};  // of texts, by Look
  std::int64_t fits[3] = {};   // of dates, by DateForm::Order
  bool has_time = false, has_zone = false;
  std::string example;  // the first text
  std::int64_t line = 0;
  void add(std::string_view text, std::int64_t line, const Notation& notation);
};

// Gives a column its type and form. Throws Error through `refuse` for a column where they are unclear.
using RefuseAt = std::function<void(std::int64_t line, const CsvColumn& column, const std::string& reason)>;
void choose_type(CsvColumn& column, const SeenColumn& seen, const CsvOptions& options, const RefuseAt& refuse);

// "types = {a = \"category\"}"
std::string types_key(const std::string& column, const char* type);
// Advises what to do with a word in a column of numbers or dates.
std::string word_remedy(const std::string& column, std::string_view word);

}  // namespace vernier
