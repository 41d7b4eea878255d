#include "csv_ambiguity.h"

#include <algorithm>
#include <cmath>
#include <cstdlib>

#include "csv_types.h"

namespace vernier {

namespace {

bool digit(char c) {
  return c >= '0' && c <= '9';
}

bool only_digits(std::string_view text) {
  return !text.empty() && std::ranges::all_of(text, digit);
}

bool reads_as_number(std::string_view text, const Notation& notation) {
  double value = 0;
  return parse_number(text, notation, value);
}

// Cuts a text at any of the signs, and leaves out empty parts.
std::vector<std::string_view> cut_at(std::string_view text, std::string_view signs) {
  std::vector<std::string_view> parts;
  while (!text.empty()) {
    const auto end = std::min(text.find_first_of(signs), text.size());
    if (end > 0) parts.push_back(text.substr(0, end));
    text.remove_prefix(std::min(end + 1, text.size()));
  }
  return parts;
}

int value_of(std::string_view digits) {
  return std::atoi(std::string(digits).c_str());
}

// 08:30, 8:30:15
bool is_time(std::string_view text) {
  const auto parts = cut_at(text, ":");
  if (parts.size() < 2 || parts.size() > 3 || !std::ranges::all_of(parts, only_digits)) return false;
  if (parts[0].size() > 2 || value_of(parts[0]) > 24) return false;
  return std::ranges::all_of(parts.begin() + 1, parts.end(),
                             [](auto part) { return part.size() == 2 && value_of(part) < 61; });
}

// A day as far as its digits go: 2021-02-30, 0000-00-00, 2.2.21, and 2021-02.
bool is_day(std::string_view text) {
  const auto between = text.find_first_not_of("0123456789");
  if (between == std::string_view::npos || std::string_view("-/.").find(text[between]) == std::string_view::npos) {
    return false;
  }
  if (!std::ranges::all_of(text, [&](char c) { return digit(c) || c == text[between]; })) return false;
  const auto parts = cut_at(text, text.substr(between, 1));
  const auto is_year = [](auto part) {
    return part.size() == 4 && (value_of(part) == 0 || (value_of(part) > 1000 && value_of(part) < 3000));
  };
  const auto is_part = [](auto part) { return part.size() <= 2 && value_of(part) <= 31; };
  if (parts.size() == 2)
    return text[between] == '-' && is_year(parts[0]) && parts[1].size() == 2 && value_of(parts[1]) <= 12 &&
           value_of(parts[1]) > 0;
  if (parts.size() != 3 || !is_part(parts[1])) return false;
  return (is_year(parts[0]) && is_part(parts[2])) || (is_part(parts[0]) && (is_year(parts[2]) || parts[2].size() == 2));
}

void cut_half_of_day(std::string_view& text) {
  for (const std::string_view half : {"AM", "PM", "am", "pm", "a.m.", "p.m."}) {
    if (!text.ends_with(half)) continue;
    text.remove_suffix(half.size());
    while (text.ends_with(' ')) text.remove_suffix(1);
    return;
  }
}

// Units that may stand beside others in a column, as 1.71 m beside 171 cm.
bool is_known_unit(std::string_view unit) {
  constexpr std::string_view known =
      " mm cm m km mg g kg t lb lbs oz ft in mi ms s sec min h hr hrs ml cl l kb mb gb tb kw kwh w v a c f k ";
  std::string lower = " ";
  for (const char c : unit) lower += static_cast<char>(c >= 'A' && c <= 'Z' ? c | 0x20 : c);
  return known.find(lower + " ") != std::string_view::npos;
}

}  // namespace

std::string_view unit_of(std::string_view text, const Notation& notation) {
  const auto last = text.find_last_of("0123456789");
  if (last == std::string_view::npos || last + 1 == text.size()) return {};
  auto unit = text.substr(last + 1);
  while (unit.starts_with(' ')) unit.remove_prefix(1);
  constexpr std::size_t longest = 12;
  const auto is_sign = [](char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '/' || static_cast<unsigned char>(c) > 127;
  };
  if (unit.empty() || unit.size() > longest || !std::ranges::all_of(unit, is_sign)) return {};
  for (const std::string_view ordinal : {"st", "nd", "rd", "th"}) {
    if (unit == ordinal) return {};
  }
  return reads_as_number(text.substr(0, last + 1), notation) ? unit : std::string_view();
}

bool is_unread_number(std::string_view text, const Notation& notation) {
  std::string plain;
  bool has_strange = false;
  for (std::size_t i = 0; i < text.size();) {
    std::size_t length = 0;
    for (const std::string_view sign : {"\xc2\xa0", "\xe2\x80\xaf", "\xe2\x80\x89", "\xe2\x88\x92", "\xe2\x80\x93"}) {
      if (text.substr(i).starts_with(sign)) length = sign.size();
    }
    if (length == 0) {
      plain += text[i++];
      continue;
    }
    // A minus sign or a dash is only one in front.
    if (text.substr(i).starts_with("\xe2\x88\x92") || text.substr(i).starts_with("\xe2\x80\x93")) plain += '-';
    has_strange = true;
    i += length;
  }
  if (plain.size() > 2 && plain.front() == '(' && plain.back() == ')') {
    plain = plain.substr(1, plain.size() - 2);
    has_strange = true;
  }
  for (const std::string_view sign : {"<=", ">=", "<", ">", "~", "≤", "≥", "±"}) {
    if (!plain.starts_with(sign)) continue;
    plain = plain.substr(sign.size());
    has_strange = true;
    break;
  }
  if (plain.starts_with("0x") || plain.starts_with("0X")) {
    return plain.size() > 2 && plain.find_first_not_of("0123456789abcdefABCDEF", 2) == std::string::npos;
  }
  while (plain.starts_with(' ')) plain.erase(0, 1);
  return has_strange && (reads_as_number(plain, notation) || other_notation_of(plain, notation) != OtherNotation::none);
}

bool is_unread_date(std::string_view text) {
  auto rest = text;
  cut_half_of_day(rest);
  if (is_time(rest)) return true;
  if (rest.size() == text.size() && is_day(rest)) return !possible_date(rest).is_date;
  const auto blank = rest.find_first_of(" T");
  return blank != std::string_view::npos && !possible_date(text).is_date &&
         (is_day(rest.substr(0, blank)) || possible_date(rest.substr(0, blank)).is_date) &&
         is_time(rest.substr(blank + 1));
}

void WrittenNumbers::add(std::string_view text, double value, std::int64_t line) {
  ++count;
  auto digits = text;
  if (digits.starts_with('-') || digits.starts_with('+')) digits.remove_prefix(1);
  const auto point = digits.find('.');
  constexpr std::size_t three = 3;
  if (only_digits(digits)) {
    ++(digits.size() <= three ? short_wholes : others);
    if (digits.size() > 1 && digits[0] == '0' && padded++ == 0) padding = text;
    if (digits.size() == 8 && possible_date(text).is_date && value > 1.9e7 && value < 2.1e7 && dates++ == 0)
      date = text;
  } else if (point != std::string_view::npos && point > 0 && point <= three && digits[0] != '0' &&
             only_digits(digits.substr(0, point)) && digits.size() == point + 1 + three &&
             only_digits(digits.substr(point + 1))) {
    if (grouped++ == 0) {
      group = text;
      group_line = line;
    }
  } else {
    ++others;
    if (point != std::string_view::npos) ++others_with_point;
  }
  constexpr double usual[] = {-9, -99, -999, -9999, -99999, 999, 9999, 99999, 999999};
  if (std::ranges::find(usual, value) != std::end(usual)) {
    ++sentinels[std::string(text)];
    return;
  }
  const bool is_first = count - 1 == 0 || (least == 0 && most == 0);
  least = is_first ? value : std::min(least, value);
  most = is_first ? value : std::max(most, value);
}

bool WrittenNumbers::doubts_points(bool has_semicolons) const {
  if (grouped == 0 || others > 0) return false;
  return short_wholes > 0 || (has_semicolons && grouped > 1);
}

std::string WrittenNumbers::sentinel() const {
  constexpr double far = 5;
  for (const auto& [word, times] : sentinels) {
    const auto value = std::atof(word.c_str());
    if (times < 2 || times == count || sentinels.size() > 1) continue;
    if (value < 0 ? least * far > value && most < -value : most * far < value && least > -value) return word;
  }
  return "";
}

bool SeenColumn::has_one_unit() const {
  if (units.size() == 1) return true;
  return !units.empty() && std::ranges::all_of(units, [](const auto& unit) { return is_known_unit(unit.first); });
}

bool has_sure_points(const std::vector<SeenColumn>& seen, const Notation& notation) {
  return notation.thousands != 0 || notation.decimal != '.' ||
         std::ranges::any_of(seen, [](const auto& column) { return column.written.others_with_point > 0; });
}

bool looks_like_record(const std::vector<std::string>& names, const std::vector<SeenColumn>& seen,
                       const MissingWords& missing, const Notation& notation) {
  std::int64_t numbers = 0, words = 0;
  bool has_unknown = false, is_counted = true, has_date = false;
  double before = 0;
  for (std::size_t i = 0; i < names.size(); ++i) {
    const auto& column = seen[i];
    if (missing.has(names[i]) || column.numbers + column.texts == 0) continue;
    double value = 0;
    const bool is_number = parse_number(names[i], notation, value);
    if (column.texts == 0) {
      if (!is_number) return false;
      is_counted = is_counted && (numbers == 0 || value == before + 1) && std::trunc(value) == value;
      before = value;
      ++numbers;
    } else if (column.dates == column.texts && column.numbers == 0) {
      if (!possible_date(names[i]).is_date) return false;
      has_date = true;
    } else {
      ++words;
      has_unknown = has_unknown || !column.has_name;
    }
  }
  if (has_unknown) return false;
  if (words + (has_date ? 1 : 0) > 0) return numbers + words > 1 || has_date;
  return numbers > 1 && !is_counted;
}

}  // namespace vernier
