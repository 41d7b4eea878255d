#include "csv_values.h"

#include <algorithm>
#include <charconv>
#include <chrono>
#include <cmath>
#include <cstdint>
#include <limits>
#include <optional>

namespace vernier {

namespace {

bool is_digit(char c) {
  return c >= '0' && c <= '9';
}

// A number of C++, which has no plus sign.
bool parse_plain(std::string_view text, double& value) {
  if (text.starts_with('+') && !text.starts_with("+-")) text.remove_prefix(1);
  const auto* end = text.data() + text.size();
  constexpr double infinity = std::numeric_limits<double>::infinity();
  const auto [stop, error] = std::from_chars(text.data(), end, value);
  if (stop != end || (error != std::errc() && error != std::errc::result_out_of_range)) return false;
  if (error == std::errc()) {
    if (std::isinf(static_cast<float>(value))) value = infinity;
    return true;
  }
  const auto at = text.find_first_of("eE");
  value = at != std::string_view::npos && text.substr(at + 1).starts_with('-') ? 0 : infinity;
  return true;
}

void trim(std::string_view& text) {
  while (text.starts_with(' ')) text.remove_prefix(1);
  while (text.ends_with(' ')) text.remove_suffix(1);
}

constexpr std::string_view signs[] = {"%", "$", "€", "£", "¥", "₹", "EUR", "USD", "GBP", "CHF"};

bool cut_sign(std::string_view& text, bool at_end) {
  for (const auto sign : signs) {
    if (at_end ? text.ends_with(sign) : text.starts_with(sign)) {
      at_end ? text.remove_suffix(sign.size()) : text.remove_prefix(sign.size());
      trim(text);
      return true;
    }
  }
  return false;
}

// Returns whether the digits before the decimals are in groups of three, and removes what is between them. Groups do
// not begin with a zero: 0.585 is less than one, whatever sign is between thousands.
bool join_groups(std::string& text, char between, char decimal) {
  const auto end = std::min(text.find(decimal), text.size());
  std::string joined;
  std::size_t since = 0;
  bool has_group = false;
  for (std::size_t i = 0; i < end; ++i) {
    if (text[i] == between) {
      if (joined.empty() || !is_digit(joined.back()) || (has_group ? since != 3 : since > 3)) return false;
      if (!has_group && joined[joined.find_first_of("0123456789")] == '0') return false;
      has_group = true;
      since = 0;
    } else {
      joined += text[i];
      since += is_digit(text[i]) ? 1 : 0;
    }
  }
  if (has_group && since != 3) return false;
  text = joined + text.substr(end);
  return true;
}

bool parse_other(std::string_view text, const Notation& notation, double& value) {
  std::string plain = notation.has_signs ? without_sign(text) : std::string(text);
  if (notation.thousands != 0 && !join_groups(plain, notation.thousands, notation.decimal)) return false;
  if (notation.decimal != '.') {
    if (plain.find('.') != std::string::npos) return false;
    std::ranges::replace(plain, notation.decimal, '.');
  }
  return parse_plain(plain, value);
}

}  // namespace

std::string without_sign(std::string_view text) {
  const bool is_negative = text.starts_with('-');
  auto rest = text.substr(is_negative ? 1 : 0);
  if (!cut_sign(rest, false) && !cut_sign(rest, true)) return std::string(text);
  return (is_negative ? "-" : "") + std::string(rest);
}

std::string_view sign_of(std::string_view text) {
  const auto found = std::ranges::find_if(signs, [&](auto sign) { return text.find(sign) != text.npos; });
  return found == std::end(signs) ? "" : *found;
}

bool parse_number(std::string_view text, const Notation& notation, double& value) {
  if (notation.decimal == '.' && notation.thousands == 0 && !notation.has_signs) return parse_plain(text, value);
  return parse_other(text, notation, value);
}

OtherNotation other_notation_of(std::string_view text, const Notation& notation) {
  double value = 0;
  if (text.empty() || parse_number(text, notation, value)) return OtherNotation::none;
  const auto bare = without_sign(text);
  if (bare.empty() ||
      !is_digit(bare[bare.find_first_not_of("+-.") == std::string::npos ? 0 : bare.find_first_not_of("+-.")])) {
    return OtherNotation::none;
  }
  const auto is_number = [&](char decimal, char thousands) {
    return parse_number(bare, {decimal, thousands, false}, value);
  };
  if (bare != text && is_number(notation.decimal, notation.thousands)) return OtherNotation::sign;
  const auto digits = bare.find_first_not_of("+-");
  const bool may_have_groups = digits != bare.npos && bare[digits] != '0';  // 0,115 has none
  if (notation.decimal != '.' && is_number('.', 0)) {
    return may_have_groups && is_number(',', '.') ? OtherNotation::thousands_point : OtherNotation::decimal_point;
  }
  const bool comma = is_number(',', 0), groups = may_have_groups && is_number('.', ',');
  if (comma && groups) return OtherNotation::comma;
  if (comma) return OtherNotation::decimal_comma;
  if (groups) return OtherNotation::thousands_comma;
  if (is_number(',', '.')) return OtherNotation::thousands_point;
  if (is_number('.', ' ') || is_number('.', '\'')) return OtherNotation::thousands_blank;
  return OtherNotation::none;
}

namespace {

constexpr std::string_view months[] = {"jan", "feb", "mar", "apr", "may", "jun",
                                       "jul", "aug", "sep", "oct", "nov", "dec"};
constexpr std::string_view long_months[] = {"january", "february", "march",     "april",   "may",      "june",
                                            "july",    "august",   "september", "october", "november", "december"};

// A date as it is written: three numbers in their order, or a month by name.
struct Written {
  std::int64_t parts[3] = {};
  std::size_t digits[3] = {};
  std::optional<std::int64_t> month;  // by name; then parts[0] and [1] are the others
  bool month_is_first = false;
  bool has_time = false, has_zone = false;
  double hours = 0, zone = 0;
};

class DateText {
 public:
  explicit DateText(std::string_view text) : left_(text) {}
  std::optional<Written> read() {
    Written date;
    if (!read_day(date)) return {};
    if (left_.empty()) return date;
    if (!(left_[0] == 'T' || left_[0] == ' ')) return {};
    left_.remove_prefix(1);
    if (!read_time(date) || !read_zone(date) || !left_.empty()) return {};
    return date;
  }

 private:
  bool number(std::int64_t& value, std::size_t& digits, std::size_t most) {
    digits = 0;
    value = 0;
    while (digits < left_.size() && is_digit(left_[digits])) {
      value = value * 10 + (left_[digits] - '0');
      if (++digits > most) return false;
    }
    left_.remove_prefix(digits);
    return digits > 0;
  }
  bool skip(std::string_view any) {
    if (left_.empty() || any.find(left_[0]) == std::string_view::npos) return false;
    left_.remove_prefix(1);
    return true;
  }
  bool month_name(Written& date) {
    std::string word;
    for (const char c : left_) {
      if (!((c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z'))) break;
      word += static_cast<char>(c | 0x20);
    }
    for (std::size_t i = 0; i < 12; ++i) {
      if (word != months[i] && word != long_months[i]) continue;
      date.month = static_cast<std::int64_t>(i) + 1;
      left_.remove_prefix(word.size());
      return true;
    }
    return false;
  }
  bool is_compact() const {
    return left_.size() >= 8 && std::ranges::all_of(left_.substr(0, 8), is_digit) &&
           (left_.size() == 8 || left_[8] == 'T' || left_[8] == ' ');
  }
  bool read_day(Written& date) {
    if (month_name(date)) {  // Jan 31, 2024
      date.month_is_first = true;
      if (!skip(" ") || !number(date.parts[0], date.digits[0], 2)) return false;
      const bool has_comma = skip(",");
      return (skip(" ") || has_comma) && number(date.parts[1], date.digits[1], 4) && date.digits[1] == 4;
    }
    if (is_compact()) {  // 20240131
      for (const auto& [part, digits] : {std::pair{0, 4}, {1, 2}, {2, 2}}) {
        for (int i = 0; i < digits; ++i)
          date.parts[part] = date.parts[part] * 10 + (left_[static_cast<std::size_t>(i)] - '0');
        date.digits[part] = static_cast<std::size_t>(digits);
        left_.remove_prefix(static_cast<std::size_t>(digits));
      }
      return true;
    }
    if (!number(date.parts[0], date.digits[0], 4) || left_.empty()) return false;
    const char between = left_[0];
    if (!skip("-/. ")) return false;
    if (month_name(date)) {  // 31-Jan-2024
      return (left_.empty() || left_[0] == between) && skip("-/. ") && number(date.parts[1], date.digits[1], 4) &&
             date.digits[0] <= 2 && date.digits[1] == 4;
    }
    if (between == ' ' || !number(date.parts[1], date.digits[1], 2) || left_.empty() || left_[0] != between) {
      return false;
    }
    left_.remove_prefix(1);
    if (!number(date.parts[2], date.digits[2], 4)) return false;
    return (date.digits[0] == 4) != (date.digits[2] == 4) && date.digits[0] != 3 && date.digits[2] != 3;
  }
  bool read_time(Written& date) {
    std::int64_t hour = 0, minute = 0, second = 0;
    std::size_t digits = 0;
    if (!number(hour, digits, 2) || !skip(":") || !number(minute, digits, 2) || digits != 2) return false;
    double fraction = 0;
    if (skip(":")) {
      if (!number(second, digits, 2) || digits != 2) return false;
      if (skip(".,")) {
        double unit = 1;
        while (!left_.empty() && is_digit(left_[0])) {
          fraction += (unit /= 10) * (left_[0] - '0');
          left_.remove_prefix(1);
        }
      }
    }
    if (hour > 23 || minute > 59 || second > 60) return false;
    date.has_time = true;
    date.hours =
        static_cast<double>(hour) + static_cast<double>(minute) / 60 + (static_cast<double>(second) + fraction) / 3600;
    return true;
  }
  bool read_zone(Written& date) {
    if (left_.empty()) return true;
    date.has_zone = true;
    if (left_ == " UTC" || left_ == "Z") {
      left_ = {};
      return true;
    }
    if (left_[0] != '+' && left_[0] != '-') return false;
    const double sign = left_[0] == '-' ? -1 : 1;
    left_.remove_prefix(1);
    std::int64_t hours = 0, minutes = 0;
    std::size_t digits = 0;
    if (left_.size() == 4 && number(hours, digits, 4)) {
      minutes = hours % 100;
      hours /= 100;
    } else if (!number(hours, digits, 2) || (skip(":") && !number(minutes, digits, 2))) {
      return false;
    }
    date.zone = sign * (static_cast<double>(hours) + static_cast<double>(minutes) / 60);
    return hours < 24 && minutes < 60;
  }

  std::string_view left_;
};

using Order = DateForm::Order;

// The date in an order; nothing where it does not fit, or is not a day of the calendar.
std::optional<std::chrono::sys_days> day_of(const Written& date, Order order) {
  std::int64_t year = 0, month = 0, day = 0;
  if (date.month) {
    year = date.parts[1], month = *date.month, day = date.parts[0];
  } else if (date.digits[0] == 4) {
    if (order != Order::year_first) return {};
    year = date.parts[0], month = date.parts[1], day = date.parts[2];
  } else {
    if (order == Order::year_first) return {};
    year = date.parts[2];
    day = date.parts[order == Order::day_first ? 0 : 1];
    month = date.parts[order == Order::day_first ? 1 : 0];
  }
  const std::chrono::year_month_day calendar(std::chrono::year(static_cast<int>(year)),
                                             std::chrono::month(static_cast<unsigned>(month)),
                                             std::chrono::day(static_cast<unsigned>(day)));
  if (month > 12 || day > 31 || !calendar.ok()) return {};
  return std::chrono::sys_days(calendar);
}

}  // namespace

std::string DateForm::text() const {
  const std::string orders[] = {"year-month-day", "day-month-year", "month-day-year"};
  return orders[static_cast<std::size_t>(order)] + (has_time ? " hour" : "") + (has_zone ? " zone" : "");
}

DateForm DateForm::parse(const std::string& text) {
  DateForm form;
  form.order = text.starts_with("day")     ? Order::day_first
               : text.starts_with("month") ? Order::month_first
                                           : Order::year_first;
  form.has_time = text.find(" hour") != std::string::npos;
  form.has_zone = text.find(" zone") != std::string::npos;
  return form;
}

bool parse_date(std::string_view text, const DateForm& form, DateNumbers& numbers) {
  const auto date = DateText(text).read();
  if (!date) return false;
  const auto written = day_of(*date, form.order);
  if (!written) return false;
  const double moved = static_cast<double>(written->time_since_epoch().count()) + (date->hours - date->zone) / 24;
  const auto whole = std::floor(moved + 1e-9);
  const std::chrono::sys_days day{std::chrono::days(static_cast<int>(whole))};
  const std::chrono::year_month_day calendar(day);
  const auto number = [](auto value) { return static_cast<double>(value); };
  const auto new_year = std::chrono::sys_days(calendar.year() / 1 / 1);
  numbers = {number(moved),
             number(static_cast<int>(calendar.year())),
             number(static_cast<unsigned>(calendar.month())),
             number(static_cast<unsigned>(calendar.day())),
             number(std::chrono::weekday(day).iso_encoding() - 1),
             number((day - new_year).count() + 1),
             number(std::max(0.0, (moved - whole) * 24))};
  return true;
}

PossibleDate possible_date(std::string_view text) {
  PossibleDate possible;
  const auto date = DateText(text).read();
  if (!date) return possible;
  for (const auto order : {Order::year_first, Order::day_first, Order::month_first}) {
    possible.fits[static_cast<std::size_t>(order)] = day_of(*date, order).has_value();
    possible.is_date = possible.is_date || possible.fits[static_cast<std::size_t>(order)];
  }
  possible.has_time = date->has_time;
  possible.has_zone = date->has_zone;
  return possible;
}

MissingWords::MissingWords(std::vector<std::string> words) : words_(std::move(words)) {
  for (const auto& word : words_) {
    if (word.empty()) {
      empty_ = true;
    } else {
      begins_[static_cast<unsigned char>(word[0])] = true;
    }
  }
}

bool MissingWords::has(std::string_view text) const {
  if (text.empty()) return empty_;
  return begins_[static_cast<unsigned char>(text[0])] && std::ranges::find(words_, text) != words_.end();
}

}  // namespace vernier
