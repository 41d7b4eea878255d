// The records and fields of CSV files (RFC 4180).
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "data/readers/mapped_file.h"

namespace vernier {

struct CsvField {
  std::string_view raw;           // without quotes around it; without spaces around it if there were no quotes
  bool has_quotes = false;        // doubled ones in it
  std::string_view text() const;  // valid until the next call on this thread
};

// Reads the records of a part of a file, one after the other. Throws Error for wrong quotes, naming the line.
class CsvRecords {
 public:
  CsvRecords(const MappedFile& file, std::string_view text, char separator, std::int64_t line)
      : file_(file), at_(text.data()), end_(text.data() + text.size()), separator_(separator), line_(line) {}
  bool next(std::vector<CsvField>& fields);                             // returns false at the end
  std::int64_t line() const { return first_line_; }                     // the line at which the record begins
  std::int64_t more_lines() const { return last_line_ - first_line_; }  // 0 unless a field has line ends
  const char* rest() const { return at_; }                              // behind the record

 private:
  CsvField plain();
  CsvField quoted();
  bool ends_in_blanks();
  [[noreturn]] void refuse(const std::string& reason) const;

  const MappedFile& file_;
  const char *at_, *end_;
  char separator_;
  std::int64_t line_, first_line_ = 0, last_line_ = 0;
};

// Whole records that are parsed together.
struct CsvPart {
  std::string_view text;
  std::int64_t line = 1;  // line of the first record
  std::int64_t row = 0;   // number of the first record
  std::int64_t rows = 0;
};

// Divides a text into parts of about `bytes` bytes. It begins with a record, and does not end with a line end. The
// pages of the file leave the memory.
std::vector<CsvPart> divide_csv(const MappedFile& file, std::string_view text, std::int64_t line, std::size_t bytes);

}  // namespace vernier
