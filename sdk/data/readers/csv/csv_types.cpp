#include "csv_types.h"

#include <vernier/data/csv.h>
#include <vernier/error.h>

#include <algorithm>

namespace vernier {

namespace {

using TextKind = SeenColumn::Kind;

// The key of a task that makes numbers of texts; "": there is none but their type.
std::string key_of(OtherNotation other) {
  switch (other) {
    case OtherNotation::decimal_point:
      return "decimal = \".\"";
    case OtherNotation::decimal_comma:
      return "decimal = \",\"";
    case OtherNotation::thousands_comma:
      return "thousands = \",\"";
    case OtherNotation::comma:
      return "thousands = \",\" or decimal = \",\"";
    case OtherNotation::thousands_point:
      return "decimal = \",\" and thousands = \".\"";
    case OtherNotation::thousands_blank:
      return "thousands = \" \"";
    default:
      return "";
  }
}

// Says how to read a number in another notation. Of $1,302 the comma is between thousands.
void advise(Unclear& odd, OtherNotation other, std::string_view text) {
  const bool has_sign = other == OtherNotation::sign || without_sign(text) != text;
  odd.key = key_of(has_sign && other == OtherNotation::comma ? OtherNotation::thousands_comma : other);
  if (other == OtherNotation::thousands_blank && text.find('\'') != text.npos) odd.key = "thousands = \"'\"";
  if (has_sign) odd.type = "number";
  odd.remedy = "set " + odd.key + (has_sign && !odd.key.empty() ? " and " : "") +
               (has_sign ? types_key(odd.column, "number") : "") + ", or for words " +
               types_key(odd.column, "category");
}

OtherNotation most_frequent(const SeenColumn& seen) {
  const auto* most = std::ranges::max_element(seen.notations);
  auto other = static_cast<OtherNotation>(most - seen.notations);
  // One value that can only be one of them decides between both kinds of comma.
  using enum OtherNotation;
  const auto count = [&](OtherNotation each) { return seen.notations[static_cast<std::size_t>(each)]; };
  if (other == comma && count(decimal_comma) > 0 && count(thousands_comma) == 0) other = decimal_comma;
  if (other == comma && count(thousands_comma) > 0 && count(decimal_comma) == 0) other = thousands_comma;
  if (other == thousands_point && count(decimal_point) > 0) other = decimal_point;
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

// "207a" and "41B": the code of something, and not a number with its unit.
bool is_code(std::string_view text) {
  const auto digits = text.find_first_not_of("0123456789");
  return digits != std::string_view::npos && digits > 0 && digits + 1 == text.size();
}

bool fits_all(const SeenColumn& seen, DateForm::Order order) {
  return seen.fits[static_cast<std::size_t>(order)] == seen.dates;
}

Unclear unclear(const SeenColumn::First& first, const std::string& column, const std::string& reason,
                const std::string& remedy, const char* type = "category") {
  Unclear made(first.line, column, "is " + in_quotes(first.text) + reason, remedy);
  made.type = type;
  return made;
}

void choose_date(CsvColumn& column, const SeenColumn& seen, const Remedies& remedies) {
  DateForm form;
  form.has_time = seen.has_time;
  form.has_zone = seen.has_zone;
  const auto& types = remedies.options.types;
  const auto given = types.find(column.name);
  using enum DateForm::Order;
  if (seen.dates == 0 && seen.texts > 0) {
    const auto first = first_of(
        seen, {TextKind::word, TextKind::notation, TextKind::unit, TextKind::unread_number, TextKind::unread_date});
    throw unclear(first, column.name, ", which is not a date",
                  "write it as 2024-01-31 or 31.1.2024, or set " + types_key(column.name, "category"));
  }
  if (given != types.end() && given->second != CsvType::date) {
    form.order = given->second == CsvType::day_first ? day_first : month_first;
  } else if (fits_all(seen, year_first)) {
    form.order = year_first;
  } else if (fits_all(seen, day_first) && fits_all(seen, month_first)) {
    const auto first = first_of(seen, {TextKind::date});
    throw unclear(first, column.name, ", a date whose day and month cannot be told apart",
                  "set " + types_key(column.name, "day-month-year") + ", \"month-day-year\" or \"category\"",
                  "day-month-year");
  } else {
    form.order = fits_all(seen, day_first) ? day_first : month_first;
  }
  column.type = CsvType::date;
  column.form = form.text();
}

// Refuses a column of dates of which one is none, or that are written in several orders.
[[noreturn]] void refuse_mixed_dates(const CsvColumn& column, const SeenColumn& seen, const Remedies& remedies) {
  const auto most = std::ranges::max_element(seen.fits) - seen.fits;
  auto first = first_of(
      seen, {TextKind::word, TextKind::notation, TextKind::unit, TextKind::unread_number, TextKind::unread_date});
  if (seen.dates == 0) {
    throw unclear(first, column.name, ", a date or time in a form that is not read",
                  "write dates as 2024-01-31 or 31.1.2024, times behind them as 14:30, or for words set " +
                      types_key(column.name, "category"));
  }
  std::string form;
  if (first.line == 0) {
    first = seen.misfits[most];
    form = " as " + DateForm{static_cast<DateForm::Order>(most)}.text();
  }
  throw remedies.of_text(first.line, column.name, first.text, ", and other lines have dates" + form + " there", false);
}

// Chooses by the texts, of which there are some.
void choose_for_texts(CsvColumn& column, const SeenColumn& seen, const Remedies& remedies) {
  const auto units = seen.has_one_unit() ? seen.count(TextKind::unit) : 0;
  const auto strange = seen.count(TextKind::notation) + units + seen.count(TextKind::unread_number);
  const auto dates = seen.dates + seen.count(TextKind::unread_date);
  if (remedies.options.names && seen.are_names()) {
    column.type = CsvType::category;
    return;
  }
  if (strange * 2 > seen.texts && (seen.numbers == 0 || strange == seen.texts)) {
    const auto first = units > 0 ? first_of(seen, {TextKind::notation, TextKind::unit, TextKind::unread_number})
                                 : first_of(seen, {TextKind::notation, TextKind::unread_number});
    auto odd = remedies.of_text(first.line, column.name, first.text, ", a number in another notation", false);
    if (seen.count(TextKind::notation) * 2 > strange) {
      advise(odd, most_frequent(seen), first.text);
    }
    throw odd;
  } else if (seen.numbers > 0) {
    auto first = first_of(seen, {TextKind::word, TextKind::notation, TextKind::unit, TextKind::unread_number,
                                 TextKind::unread_date, TextKind::date});
    throw remedies.of_text(first.line, column.name, first.text, ", and other lines have numbers there", false);
  } else if (seen.dates == seen.texts && *std::ranges::max_element(seen.fits) == seen.dates) {
    choose_date(column, seen, remedies);
  } else if (dates * 2 > seen.texts) {
    refuse_mixed_dates(column, seen, remedies);
  } else {
    column.type = CsvType::category;
  }
}

}  // namespace

std::string types_key(const std::string& column, const char* type) {
  return "types = {" + toml_key(column) + " = \"" + type + "\"}";
}

std::string Unclear::text() const {
  return "line " + std::to_string(line) + ", column '" + shortened(column) + "' " + reason;
}

std::string Remedies::missing_words(const std::vector<std::string>& more, const std::string& less) const {
  // The default list is not repeated: those of it that the file has are enough.
  std::vector<std::string> all(words.begin(), words.end());
  if (options.missing != CsvOptions().missing) all = options.missing;
  all.insert(all.end(), more.begin(), more.end());
  std::string list;
  for (const auto& word : all) {
    if (!word.empty() && word != less) list += (list.empty() ? "\"" : ", \"") + shortened(word, 40) + "\"";
  }
  return "missing_words = [" + list + "]";
}

Unclear Remedies::of_text(std::int64_t line, const std::string& column, std::string_view text,
                          const std::string& reason, bool is_target) const {
  const Notation notation{options.decimal, options.thousands, false};
  const auto other = other_notation_of(text, notation);
  const auto words = " for words " + types_key(column, "category");
  auto odd = unclear({std::string(text), line}, column, reason, "");
  if (other != OtherNotation::none) {
    advise(odd, other, text);
  } else if (is_unread_number(text, notation)) {
    odd.remedy = "write it with digits, - and . alone, or set" + words;
  } else if (!unit_of(text, notation).empty()) {
    odd.remedy = "write the number without its unit, or set" + words;
  } else {
    odd.cell = text;
    odd.remedy = "correct it, set " + missing_words({odd.cell}) + " if it stands for no value, or " +
                 (is_target ? "kind = \"classification\"" : types_key(column, "category"));
  }
  return odd;
}

std::string Remedies::of_all(const std::vector<Unclear>& columns) const {
  std::set<std::string> keys, cells;
  std::string own, all, text;  // types, of the columns that need one, and of all
  std::string fill, names;     // the advice for columns without a value, and what they are called
  std::size_t without = 0;
  const auto add = [](std::string& list, const char* between, const std::string& more) {
    list += (list.empty() ? "" : between) + more;
  };
  for (const auto& each : columns) {
    if (each.fill.empty()) continue;
    ++without;
    fill = each.fill;
    add(names, "\", \"", shortened(each.column));
  }
  if (const auto place = fill.find("{}"); place != std::string::npos) fill.replace(place, 2, names);
  if (without > 0) text = std::string("remove the line") + (without > 1 ? "s" : "") + ", or " + fill;
  // One key may read several columns: by the comma of 0,5 1,234 is a number too, and 1.234 where points group digits.
  using enum OtherNotation;
  const auto has = [&](OtherNotation other) { return keys.contains(key_of(other)); };
  for (const auto& each : columns) {
    if (!each.key.empty() && !each.type.empty()) keys.insert(each.key);
  }
  for (const auto& each : columns) {
    if (each.type.empty() && each.key == key_of(thousands_point) && has(decimal_comma)) keys.insert(each.key);
  }
  if (has(decimal_point)) keys.erase(key_of(thousands_point));
  if (has(thousands_point)) keys.erase(key_of(decimal_comma));
  if (has(decimal_comma) || has(thousands_comma) || has(thousands_point)) keys.erase(key_of(comma));
  for (const auto& each : columns) {
    if (!each.fill.empty()) continue;
    const bool is_read = keys.contains(each.key);
    if (each.type.empty() && !is_read && text.find(each.remedy) == std::string::npos) add(text, "; or ", each.remedy);
    if (each.type.empty()) continue;
    if (!each.cell.empty()) cells.insert(each.cell);
    const auto type = toml_key(each.column) + " = \"";
    if (each.key.empty() || each.type == "number") add(own, ", ", type + each.type + "\"");
    add(all, ", ", type + (each.type == "number" ? "category" : each.type) + "\"");
  }
  constexpr std::size_t few = 5;  // more of them are not words for no value
  if (!cells.empty() && cells.size() <= few) {
    add(text, "; or ", "set " + missing_words({cells.begin(), cells.end()}) + " if they stand for no value");
  }
  if (keys.size() == 1) add(text, "; or ", "set " + *keys.begin() + (own.empty() ? "" : " and types = {" + own + "}"));
  if (keys.empty() && !own.empty()) all = own;
  if (!all.empty()) add(text, "; or ", std::string(keys.size() == 1 ? "for words " : "") + "set types = {" + all + "}");
  return text;
}

std::int64_t SeenColumn::count(TextKind kind) const {
  const auto found = kinds.find(kind);
  return found == kinds.end() ? 0 : found->second;
}

bool SeenColumn::are_names() const {
  constexpr std::size_t few = 20;
  if (numbers == 0 || has_fraction || name_texts * 2 <= texts) return false;
  const auto has_digit = [](const auto& name) { return name.find_first_of("0123456789") != std::string::npos; };
  return different.size() <= few || names.size() > 2 || std::ranges::any_of(names, has_digit);
}

void SeenColumn::add(std::string_view text, std::int64_t line, const Notation& notation) {
  constexpr std::size_t enough = 32;
  double value = 0;
  if (parse_number(text, notation, value)) {
    ++numbers;
    has_fraction = has_fraction || std::trunc(value) != value;
    if (different.size() < enough) different.insert(value);
    written.add(text, value, line);
    return;
  }
  ++texts;
  const auto other = other_notation_of(text, notation);
  const auto date = other == OtherNotation::none ? possible_date(text) : PossibleDate{};
  auto kind = other == OtherNotation::none ? TextKind::word : TextKind::notation;
  const std::string_view unit = other == OtherNotation::none && !date.is_date ? unit_of(text, notation) : "";
  constexpr std::size_t most_units = 16;
  ++notations[static_cast<std::size_t>(date.is_date ? OtherNotation::none : other)];
  if (other == OtherNotation::sign) written.signs.emplace(sign_of(text));
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
  if (kind == TextKind::word || (kind == TextKind::unit && is_code(text))) {
    ++name_texts;
    if (names.size() < enough) names.emplace(text);
  }
  ++kinds[kind];
  if (!firsts.contains(kind)) firsts[kind] = {std::string(text), line};
}

void choose_type(CsvColumn& column, const SeenColumn& seen, const Remedies& remedies) {
  const auto& types = remedies.options.types;
  const auto given = types.find(column.name);
  if (given != types.end()) {
    column.type = given->second;
    column.has_signs = column.type == CsvType::number;
    if (column.type != CsvType::number && column.type != CsvType::category) {
      choose_date(column, seen, remedies);
    }
  } else if (seen.texts == 0) {
    column.type = CsvType::number;
  } else {
    choose_for_texts(column, seen, remedies);
  }
}

}  // namespace vernier
