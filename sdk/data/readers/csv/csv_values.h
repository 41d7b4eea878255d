// The numbers and dates of CSV fields.
#pragma once

#include <array>
#include <string>
#include <string_view>
#include <vector>

namespace vernier {

struct CsvOptions;

// How numbers are written: the sign before decimals, and the one between groups of three digits (0: none).
struct Notation {
  char decimal = '.', thousands = 0;
  bool has_signs = false;  // signs of currencies and % around a number are skipped
};

// Returns whether the whole text is a number. One that is too large for float32 is infinite.
bool parse_number(std::string_view text, const Notation& notation, double& value);

// Removes one sign of a currency or % before or behind a number; "-$5" keeps its minus.
std::string without_sign(std::string_view text);
// Returns the sign of a currency or % in a text; "" if there is none.
std::string_view sign_of(std::string_view text);

// Returns whether a text is a number in some other notation, such as "3,50", "1.234", "$5" or "12%".
enum class OtherNotation {
  none,
  decimal_comma,
  thousands_comma,
  comma,
  thousands_point,
  thousands_blank,
  sign,
  decimal_point
};
OtherNotation other_notation_of(std::string_view text, const Notation& notation);

// The order of a date's parts: year-month-day, day-month-year or month-day-year, with a time or without.
struct DateForm {
  enum class Order { year_first, day_first, month_first };
  Order order = Order::year_first;
  bool has_time = false, has_zone = false;

  std::string text() const;  // "year-month-day hour zone"
  static DateForm parse(const std::string& text);
};

constexpr std::size_t date_parts = 7;
using DateNumbers = std::array<double, date_parts>;  // numbers in the order of numbers_of()

// Returns whether the whole text is a date: 2024-01-31, 2024/1/31, 20240131, 31.1.2024, 31/01/2024, 31-Jan-2024, Jan
// 31, 2024, with a time behind a blank or T (12:30, 12:30:15.5) and then a zone (Z, +01:00). Where it does not say the
// order, `form` does. The date is moved to UTC by its zone.
bool parse_date(std::string_view text, const DateForm& form, DateNumbers& numbers);

// The form of a date in a text, as far as it shows: is_date is false if there is none; `fits` are the orders that it
// allows.
struct PossibleDate {
  bool is_date = false, has_time = false, has_zone = false;
  std::array<bool, 3> fits = {};  // by DateForm::Order
};
PossibleDate possible_date(std::string_view text);

// The words that stand for a missing value.
class MissingWords {
 public:
  explicit MissingWords(std::vector<std::string> words);
  bool has(std::string_view text) const;

 private:
  std::vector<std::string> words_;
  bool empty_ = false;
  std::array<bool, 256> begins_ = {};
};

}  // namespace vernier
