// The text of a CSV file: its bytes as UTF-8, and what divides its fields.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "data/readers/mapped_file.h"

namespace vernier {

struct CsvOptions;

// Without the byte-order mark, the lines to skip and the line ends at the end. Throws Error for a file that is not such
// a text, and says what it is.
class CsvText {
 public:
  CsvText(const MappedFile& file, const CsvOptions& options);
  CsvText(const CsvText&) = delete;
  CsvText& operator=(const CsvText&) = delete;
  std::string_view text() const { return text_; }
  // Throws Error with the place of the first byte that is not UTF-8.
  void require_utf8(char separator) const;

 private:
  void refuse_other_formats() const;
  void read_latin1();

  const MappedFile& file_;
  const CsvOptions& options_;
  std::string own_;  // the text, if it is not that of the file
  std::string_view text_;
};

// The separator that divides the first records into equally many fields, and most of them; ',' if none does.
char find_separator(const MappedFile& file, std::string_view text);

}  // namespace vernier
