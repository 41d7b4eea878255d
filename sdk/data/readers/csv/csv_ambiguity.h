// Doubts about what a text means: forms of numbers and dates that are not read, and columns that may be read wrongly.
#pragma once

#include <cstdint>
#include <map>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "csv_values.h"

namespace vernier {

struct CsvColumn;
class MissingWords;
struct SeenColumn;

// Returns the unit of "171 cm" or "70.3kg"; "" if the text is not a number with a unit behind it.
std::string_view unit_of(std::string_view text, const Notation& notation);
// Returns whether a text is a number in a form that is not read: (0.5), <0.1, 0x1f, or one with a minus sign or a blank
// of Unicode.
bool is_unread_number(std::string_view text, const Notation& notation);
// Returns whether a text is a date or time in a form that is not read: 2021-02-30, 08:30, 2.2.21, 2021-02, 1:30 PM.
bool is_unread_date(std::string_view text);

// Facts of the numbers of a column, as they are written.
struct WrittenNumbers {
  std::int64_t count = 0;
  std::int64_t short_wholes = 0;                  // whole numbers with at most three digits
  std::int64_t grouped = 0;                       // 2.085, which may be 2085
  std::int64_t others = 0;                        // cannot have a point between thousands: 0.5, 12.34, 1234
  std::int64_t others_with_point = 0;             // 0.5, 12.34: the point is before decimals in the whole file
  std::int64_t padded = 0, dates = 0;             // 00037; 20240131
  std::string group, padding, date;               // the first ones
  std::int64_t group_line = 0;                    // line of `group`
  std::map<std::string, std::int64_t> sentinels;  // -999 and the like
  std::set<std::string> signs;                    // % and currencies beside other numbers, which are not counted
  double least = 0, most = 0;                     // the range of the other numbers
  void add(std::string_view text, double value, std::int64_t line);
  // Returns whether the points may be between thousands, if no other column says more. A semicolon between fields
  // comes with commas before decimals.
  bool doubts_points(bool has_semicolons) const;
  // Returns the word of -999, 9999, … that is far from all other numbers; "" if there is none.
  std::string sentinel() const;
};

// Returns whether points are before decimals in the whole file: a column has 0.5 or 12.34, or an option says so.
bool has_sure_points(const std::vector<SeenColumn>& seen, const Notation& notation);

// Returns whether the first record looks like the records below it: it has numbers above columns of numbers, and its
// words are values of their columns.
bool looks_like_record(const std::vector<std::string>& names, const std::vector<SeenColumn>& seen,
                       const MissingWords& missing, const Notation& notation);

}  // namespace vernier
