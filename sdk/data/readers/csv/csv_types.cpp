#include "csv_types.h"

#include <vernier/data/csv.h>
#include <vernier/error.h>

#include <algorithm>

namespace vernier {

namespace {

using TextKind = SeenColumn::Kind;

// The key that makes numbers of texts that resemble some.
std::string notation_key(const std::string& column, OtherNotation other) {
  switch (other) {
    case OtherNotation::decimal_point:
      return "decimal = \".\"";
    case OtherNotation::decimal_comma:
      return "decimal = \",\"";
    case OtherNotation::thousands_comma:
      return "thousands = \",\"";
    case OtherNotation::comma:
      return "decimal = \",\" or thousands = \",\"";
    case OtherNotation::thousands_point:
      return "decimal = \",\" and thousands = \".\"";
    case OtherNotation::thousands_blank:
      return "thousands = \" \" or \"'\"";
    default:
      return types_key(column, "number");
  }
}

OtherNotation most_frequent(const SeenColumn& seen) {
  const auto* most = std::ranges::max_element(seen.notations);
  auto other = static_cast<OtherNotation>(most - seen.notations);
  // One value that can only be one of them decides between both kinds of comma.
  using enum OtherNotation;
  const auto count = [&](OtherNotation each) { return seen.notations[static_cast<std::size_t>(each)]; };
  if (other == comma && count(decimal_comma) > 0 && count(thousands_comma) == 0) other = decimal_comma;
  if (other == comma && count(thousands_comma) > 0 && count(decimal_comma) == 0) other = thousands_comma;
  return other;
}

std::string in_quotes(std::string_view text) {
  return "'" + shortened(std::string(text)) + "'";
}

// The first text of several kinds.
SeenColumn::First first_of(const SeenColumn& seen, std::initializer_list<TextKind> kinds) {
  SeenColumn::First first;
  for (const auto kind : kinds) {
    const auto found = seen.firsts.find(kind);
    if (found != seen.firsts.end() && (first.line == 0 || found->second.line < first.line)) first = found->second;
  }
  return first;
}

bool fits_all(const SeenColumn& seen, DateForm::Order order) {
  return seen.fits[static_cast<std::size_t>(order)] == seen.dates;
}

void choose_date(CsvColumn& column, const SeenColumn& seen, const Remedies& remedies, const RefuseAt& refuse) {
  DateForm form;
  form.has_time = seen.has_time;
  form.has_zone = seen.has_zone;
  const auto& types = remedies.options.types;
  const auto given = types.find(column.name);
  using enum DateForm::Order;
  if (seen.dates == 0 && seen.texts > 0) {
    const auto first = first_of(
        seen, {TextKind::word, TextKind::notation, TextKind::unit, TextKind::unread_number, TextKind::unread_date});
    refuse(first.line, column,
           "is " + in_quotes(first.text) + ", which is not a date; write it as 2024-01-31 or 31.1.2024, or set " +
               types_key(column.name, "category"));
  }
  if (given != types.end() && given->second != CsvType::date) {
    form.order = given->second == CsvType::day_first ? day_first : month_first;
  } else if (fits_all(seen, year_first)) {
    form.order = year_first;
  } else if (fits_all(seen, day_first) && fits_all(seen, month_first)) {
    const auto first = first_of(seen, {TextKind::date});
    refuse(first.line, column,
           "is " + in_quotes(first.text) + ", a date whose day and month cannot be told apart; set " +
               types_key(column.name, "day-month-year") + ", \"month-day-year\" or \"category\"");
  } else {
    form.order = fits_all(seen, day_first) ? day_first : month_first;
  }
  column.type = CsvType::date;
  column.form = form.text();
}

// Refuses a column of dates of which one is none, or that are written in several orders.
void refuse_mixed_dates(const CsvColumn& column, const SeenColumn& seen, const Remedies& remedies,
                        const RefuseAt& refuse) {
  const auto most = std::ranges::max_element(seen.fits) - seen.fits;
  auto first = first_of(
      seen, {TextKind::word, TextKind::notation, TextKind::unit, TextKind::unread_number, TextKind::unread_date});
  if (seen.dates == 0) {
    refuse(first.line, column,
           "is " + in_quotes(first.text) +
               ", a date or time in a form that is not read; write dates as 2024-01-31 or 31.1.2024, times behind them "
               "as 14:30, or for words set " +
               types_key(column.name, "category"));
  }
  std::string form;
  if (first.line == 0) {
    first = seen.misfits[most];
    form = " as " + DateForm{static_cast<DateForm::Order>(most)}.text();
  }
  refuse(first.line, column,
         "is " + in_quotes(first.text) + ", and other lines have dates" + form + " there; " +
             remedies.of_text(column.name, first.text, false));
}

// Chooses by the texts, of which there are some.
void choose_for_texts(CsvColumn& column, const SeenColumn& seen, const Remedies& remedies, const RefuseAt& refuse) {
  const auto units = seen.has_one_unit() ? seen.count(TextKind::unit) : 0;
  const auto strange = seen.count(TextKind::notation) + units + seen.count(TextKind::unread_number);
  const auto dates = seen.dates + seen.count(TextKind::unread_date);
  if (strange * 2 > seen.texts && (seen.numbers == 0 || strange == seen.texts)) {
    const auto first = units > 0 ? first_of(seen, {TextKind::notation, TextKind::unit, TextKind::unread_number})
                                 : first_of(seen, {TextKind::notation, TextKind::unread_number});
    auto remedy = remedies.of_number(column.name, first.text);
    if (seen.count(TextKind::notation) * 2 > strange) {
      remedy = "set " + notation_key(column.name, most_frequent(seen)) + ", or for words " +
               types_key(column.name, "category");
    }
    refuse(first.line, column, "is " + in_quotes(first.text) + ", a number in another notation; " + remedy);
  } else if (seen.numbers > 0) {
    auto first = first_of(seen, {TextKind::word, TextKind::notation, TextKind::unit, TextKind::unread_number,
                                 TextKind::unread_date, TextKind::date});
    refuse(first.line, column,
           "is " + in_quotes(first.text) + ", and other lines have numbers there; " +
               remedies.of_text(column.name, first.text, false));
  } else if (seen.dates == seen.texts && *std::ranges::max_element(seen.fits) == seen.dates) {
    choose_date(column, seen, remedies, refuse);
  } else if (dates * 2 > seen.texts) {
    refuse_mixed_dates(column, seen, remedies, refuse);
  } else {
    column.type = CsvType::category;
  }
}

}  // namespace

std::string types_key(const std::string& column, const char* type) {
  return "types = {" + toml_key(column) + " = \"" + type + "\"}";
}

std::string Remedies::missing_words(const std::string& more, const std::string& less) const {
  // The default list is not repeated: those of it that the file has are enough.
  std::vector<std::string> all(words.begin(), words.end());
  if (options.missing != CsvOptions().missing) all = options.missing;
  if (!more.empty()) all.push_back(more);
  std::string list;
  for (const auto& word : all) {
    if (!word.empty() && word != less) list += (list.empty() ? "\"" : ", \"") + shortened(word, 40) + "\"";
  }
  return "missing_words = [" + list + "]";
}

std::string Remedies::of_number(const std::string& column, std::string_view text) const {
  const Notation notation{options.decimal, options.thousands, false};
  const auto other = other_notation_of(text, notation);
  const bool is_unread = other == OtherNotation::none && is_unread_number(text, notation);
  if (other == OtherNotation::none && !is_unread && unit_of(text, notation).empty()) return "";
  const auto words = " for words " + types_key(column, "category");
  if (other != OtherNotation::none) return "set " + notation_key(column, other) + ", or" + words;
  return std::string(is_unread ? "write it with digits, - and . alone" : "write the number without its unit") +
         ", or set" + words;
}

std::string Remedies::of_text(const std::string& column, std::string_view text, bool is_target) const {
  const auto number = of_number(column, text);
  if (!number.empty()) return number;
  return "correct it, set " + missing_words(std::string(text)) + " if it stands for no value, or " +
         (is_target ? "kind = \"classification\"" : types_key(column, "category"));
}

std::int64_t SeenColumn::count(TextKind kind) const {
  const auto found = kinds.find(kind);
  return found == kinds.end() ? 0 : found->second;
}

void SeenColumn::add(std::string_view text, std::int64_t line, const Notation& notation) {
  double value = 0;
  if (parse_number(text, notation, value)) {
    ++numbers;
    if (notation.decimal == '.' && notation.thousands == 0) written.add(text, value, line);
    return;
  }
  ++texts;
  const auto other = other_notation_of(text, notation);
  const auto date = other == OtherNotation::none ? possible_date(text) : PossibleDate{};
  auto kind = other == OtherNotation::none ? TextKind::word : TextKind::notation;
  const std::string_view unit = other == OtherNotation::none && !date.is_date ? unit_of(text, notation) : "";
  constexpr std::size_t most_units = 16;
  ++notations[static_cast<std::size_t>(date.is_date ? OtherNotation::none : other)];
  if (date.is_date) {
    kind = TextKind::date;
    ++dates;
    has_time = has_time || date.has_time;
    has_zone = has_zone || date.has_zone;
    for (std::size_t i = 0; i < 3; ++i) {
      fits[i] += date.fits[i] ? 1 : 0;
      if (!date.fits[i] && misfits[i].line == 0) misfits[i] = {std::string(text), line};
    }
  } else if (other == OtherNotation::none && is_unread_date(text)) {
    kind = TextKind::unread_date;
  } else if (!unit.empty()) {
    kind = TextKind::unit;
    if (units.size() < most_units) ++units[std::string(unit)];
  } else if (other == OtherNotation::none && is_unread_number(text, notation)) {
    kind = TextKind::unread_number;
  }
  ++kinds[kind];
  if (!firsts.contains(kind)) firsts[kind] = {std::string(text), line};
}

void choose_type(CsvColumn& column, const SeenColumn& seen, const Remedies& remedies, const RefuseAt& refuse) {
  const auto& types = remedies.options.types;
  const auto given = types.find(column.name);
  if (given != types.end()) {
    column.type = given->second;
    column.has_signs = column.type == CsvType::number;
    if (column.type != CsvType::number && column.type != CsvType::category) {
      choose_date(column, seen, remedies, refuse);
    }
  } else if (seen.texts == 0) {
    column.type = CsvType::number;
  } else {
    choose_for_texts(column, seen, remedies, refuse);
  }
}

}  // namespace vernier
