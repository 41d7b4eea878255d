#include "csv_look.h"

#include <vernier/csv.h>
#include <vernier/error.h>

#include <algorithm>

namespace vernier {

namespace {

// The key that makes numbers of texts that look like some.
std::string notation_key(const std::string& column, Look look) {
  const auto sign = types_key(column, "number");
  switch (look) {
    case Look::decimal_comma:
      return "decimal = \",\"";
    case Look::thousands_comma:
      return "thousands = \",\"";
    case Look::comma:
      return "decimal = \",\" or thousands = \",\"";
    case Look::thousands_point:
      return "decimal = \",\" and thousands = \".\"";
    case Look::thousands_blank:
      return "thousands = \" \" or \"'\"";
    default:
      return sign;
  }
}

Look most_frequent(const SeenColumn& seen) {
  const auto* most = std::ranges::max_element(seen.looks);
  auto look = static_cast<Look>(most - seen.looks);
  // One value that can only be one of them decides between both kinds of comma.
  using enum Look;
  const auto count = [&](Look each) { return seen.looks[static_cast<std::size_t>(each)]; };
  if (look == comma && count(decimal_comma) > 0 && count(thousands_comma) == 0) look = decimal_comma;
  if (look == comma && count(thousands_comma) > 0 && count(decimal_comma) == 0) look = thousands_comma;
  return look;
}

void choose_date(CsvColumn& column, const SeenColumn& seen, const CsvOptions& options, const RefuseAt& refuse) {
  DateForm form;
  form.has_time = seen.has_time;
  form.has_zone = seen.has_zone;
  const auto fits = [&](DateForm::Order order) { return seen.fits[static_cast<std::size_t>(order)] == seen.dates; };
  const auto given = options.types.find(column.name);
  using enum DateForm::Order;
  if (given != options.types.end() && given->second != CsvType::date) {
    form.order = given->second == CsvType::day_first ? day_first : month_first;
  } else if (fits(year_first)) {
    form.order = year_first;
  } else if (fits(day_first) && fits(month_first)) {
    refuse(seen.line, column,
           "is '" + shortened(seen.example) + "', a date whose day and month cannot be told apart; set " +
               types_key(column.name, "day-month-year") + ", \"month-day-year\" or \"category\"");
  } else {
    form.order = fits(day_first) ? day_first : month_first;
  }
  column.type = CsvType::date;
  column.form = form.text();
}

}  // namespace

std::string types_key(const std::string& column, const char* type) {
  return "types = {" + toml_key(column) + " = \"" + type + "\"}";
}

std::string word_remedy(const std::string& column, std::string_view word) {
  return "correct it, set missing_words = [\"" + shortened(std::string(word), 40) +
         "\"] if it stands for no value, or " + types_key(column, "category");
}

void SeenColumn::add(std::string_view text, std::int64_t of_line, const Notation& notation) {
  float value = 0;
  if (parse_number(text, notation, value)) {
    ++numbers;
    return;
  }
  if (texts++ == 0) {
    example = text;
    line = of_line;
  }
  const auto look = look_of_number(text, notation);
  const auto date = look == Look::none ? look_of_date(text) : DateLook{};
  if (date.is_date) {
    ++dates;
    has_time = has_time || date.has_time;
    has_zone = has_zone || date.has_zone;
    for (std::size_t i = 0; i < 3; ++i) fits[i] += date.fits[i] ? 1 : 0;
  } else {
    ++looks[static_cast<std::size_t>(look)];
  }
}

void choose_type(CsvColumn& column, const SeenColumn& seen, const CsvOptions& options, const RefuseAt& refuse) {
  const auto given = options.types.find(column.name);
  if (given != options.types.end()) {
    column.type = given->second;
    column.has_signs = column.type == CsvType::number;
    if (column.type != CsvType::number && column.type != CsvType::category) {
      choose_date(column, seen, options, refuse);
    }
    return;
  }
  const auto example = "is '" + shortened(seen.example) + "', ";
  const auto strange = seen.texts - seen.dates - seen.looks[0];  // texts that look like numbers
  const auto most_of_fits = *std::ranges::max_element(seen.fits);
  if (seen.texts > 0 && strange == seen.texts) {
    refuse(seen.line, column,
           example + "a number in another notation; set " + notation_key(column.name, most_frequent(seen)) +
               ", or for words " + types_key(column.name, "category"));
  } else if (seen.numbers > 0 && seen.texts > 0) {
    refuse(seen.line, column,
           example + "and other lines have numbers there; " + word_remedy(column.name, seen.example));
  } else if (seen.dates > 0 && seen.dates == seen.texts && most_of_fits == seen.dates) {
    choose_date(column, seen, options, refuse);
  } else {
    column.type = seen.texts > 0 ? CsvType::category : CsvType::number;
  }
}

}  // namespace vernier
