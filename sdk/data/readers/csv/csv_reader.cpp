#include <ATen/ops/empty.h>
#include <c10/util/StringUtil.h>
#include <glob.h>
#include <vernier/data/csv.h>
#include <vernier/error.h>
#include <vernier/memory.h>
#include <vernier/missing_file.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <cstring>
#include <filesystem>
#include <limits>
#include <new>

#include "base/parts.h"
#include "csv_fit.h"
#include "csv_reader.h"

namespace vernier {

namespace {

constexpr std::size_t csv_part_bytes = 4 << 20;
constexpr double exact_whole = 1 << 24;               // float32 has all whole numbers up to here
constexpr double exact_wide = std::int64_t{1} << 53;  // and float64 up to here

// Returns the digits of a number up to its fraction or exponent, without zeros at both ends.
std::string digits_of(std::string_view text, char fraction) {
  std::string digits;
  for (const char c : text.substr(0, text.find_first_of(std::string{'e', fraction}))) {
    if (c >= '0' && c <= '9' && (c != '0' || !digits.empty())) digits += c;
  }
  return digits.substr(0, digits.find_last_not_of('0') + 1);
}

// Returns whether a text is a whole number that float64 rounds, such as 9007199254740993. Not 1e30, and not the text of
// fewest digits that is read as the same number, as programs write float64.
bool is_rounded(std::string_view text, const Notation& notation, double value) {
  if (std::abs(value) < exact_wide || text.find_first_of("eE") != std::string_view::npos) return false;
  const auto digits = digits_of(text, notation.decimal);
  char exact[512], fewest[32];
  const auto* end = std::to_chars(exact, exact + sizeof exact, value, std::chars_format::fixed, 0).ptr;
  const auto* last = std::to_chars(fewest, fewest + sizeof fewest, value, std::chars_format::scientific).ptr;
  return digits != digits_of({exact, end}, '.') && digits != digits_of({fewest, last}, ' ');
}

}  // namespace

void CsvReader::require_memory(std::int64_t rows, std::int64_t values) const {
  const auto bytes = rows * (values + 1) * 8, left = free_memory(torch::kCPU);
  if (bytes <= left) return;
  file_->refuse(c10::str("has ", rows, " rows of ", values, " values, which take ", memory_text(bytes), ", and ",
                         memory_text(left), " are free; leave columns out by `leave_out`, or take fewer rows"));
}

void CsvReader::make_tensors(std::int64_t rows) {
  std::int64_t numbers = 0, categories = 0;
  for (const auto& column : table_.schema.columns) {
    numbers += std::ssize(numbers_of(column));
    categories += column.type == CsvType::category ? 1 : 0;
  }
  require_memory(rows, numbers + categories);
  table_.numbers = at::empty({rows, numbers}, torch::kFloat64);
  table_.categories = at::empty({rows, categories}, torch::kInt64);
  auto* number = numbers > 0 ? table_.numbers.mutable_data_ptr<double>() : nullptr;
  auto* code = categories > 0 ? table_.categories.mutable_data_ptr<std::int64_t>() : nullptr;
  const auto begin = [this](CsvColumn& column) -> Destination& {
    auto& to = destinations_[place_of(column.name)];
    to.column = &column;
    to.notation = {options_.decimal, options_.thousands, column.has_signs};
    to.form = DateForm::parse(column.form);
    return to;
  };
  for (auto& column : table_.schema.columns) {
    auto& to = begin(column);
    const bool is_category = column.type == CsvType::category;
    to.stride = is_category ? categories : numbers;
    if (is_category) {
      to.codes = code++;
    } else {
      to.numbers = number;
      number += numbers_of(column).size();
    }
  }
  if (!options_.group.empty() && std::ranges::find(names_, options_.group) != names_.end()) {
    group_ = {options_.group, CsvType::category};
    auto& to = begin(group_);
    to.is_group = true;
    table_.groups = at::empty({rows}, torch::kInt64);
    to.codes = table_.groups.mutable_data_ptr<std::int64_t>();
  }
  if (!table_.schema.target) return;
  auto& target = begin(*table_.schema.target);
  target.is_target = true;
  const bool is_number = target.column->type == CsvType::number;
  table_.target = at::empty({rows}, is_number ? torch::kFloat64 : torch::kInt64);
  if (is_number) {
    target.numbers = table_.target.mutable_data_ptr<double>();
  } else {
    target.codes = table_.target.mutable_data_ptr<std::int64_t>();
  }
}

void CsvReader::refuse_unclear(const std::vector<Unclear>& columns) const {
  if (columns.empty()) return;
  if (columns.size() == 1) file_->refuse(columns[0].text() + "; " + columns[0].remedy);
  constexpr std::size_t most = 5;
  auto text = c10::str("has ", columns.size(), " columns that are not clear: ");
  for (std::size_t i = 0; i < std::min(most, columns.size()); ++i) text += (i > 0 ? "; " : "") + columns[i].text();
  file_->refuse(text + (columns.size() > most ? "; and so on; " : "; ") + remedies_.of_all(columns));
}

void CsvReader::require_value(const Destination& to, std::string_view text, std::int64_t line, bool is_filled) const {
  if (is_filled) return;
  const auto word = shortened(std::string(text));
  const std::string role = to.is_target  ? ", and it is the target"
                           : to.is_group ? ", and it is the group of the split"
                                         : "";
  std::string remedy = "remove the line", fill;
  const bool is_word = !text.empty() && to.codes != nullptr;
  if (is_word) {
    remedy = "if it is a word, set " + remedies_.missing_words({}, std::string(text)) + ", or else remove the line";
  }
  const auto& advice = options_.fill_remedy;
  if (to.is_group) remedy += ", or set split = \"random\"";
  if (to.is_target && !has_schema_ && advice.find("\"drop\"") != std::string::npos) {
    remedy += ", or set missing = \"drop\"";
  } else if (!to.is_target && !to.is_group && !advice.empty()) {
    const auto place = advice.find("{}");
    if (!is_word) fill = advice;
    remedy += ", or " + advice.substr(0, place);
    if (place != std::string::npos) remedy += shortened(to.column->name) + advice.substr(place + 2);
  }
  Unclear odd(line, to.column->name,
              (text.empty() ? "has no value" : "is '" + word + "', which stands for no value") + role, remedy);
  odd.fill = fill;
  throw odd;
}

void CsvReader::note_rounded(const Destination& to, std::string_view text, std::size_t place, std::int64_t line,
                             PartResult& result) const {
  if (!has_schema_ && !options_.types.contains(to.column->name)) {
    Unclear odd(line, to.column->name, "is " + shortened(std::string(text)) + ", beyond 2^53, and float64 rounds it",
                "if it is a name, set " + types_key(to.column->name, "category") + ", and for a rounded number " +
                    types_key(to.column->name, "number"));
    odd.type = "category";
    throw odd;
  }
  if (result.rounded[place].empty()) result.rounded[place] = text;
}

void CsvReader::put_number(const Destination& to, std::string_view text, std::int64_t row, std::size_t place,
                           std::int64_t line, PartResult& result) const {
  double value = 0;
  const bool drops = options_.fill == CsvFill::drop && (to.is_target || table_.schema.target);
  if (words_.has(text)) {
    result.missing[place].add(text);
    require_value(to, text, line,
                  to.is_target  ? options_.fill != CsvFill::refuse
                  : has_schema_ ? to.column->fill.has_value() || drops || options_.fill == CsvFill::previous
                                : options_.fill != CsvFill::refuse);
    value = std::numeric_limits<double>::quiet_NaN();
  } else if (!parse_number(text, to.notation, value)) {
    auto odd = remedies_.of_text(line, to.column->name, text, ", which is not a number", to.is_target);
    if (has_schema_) odd.type = odd.key = odd.cell = "", odd.remedy = "correct it";
    throw odd;
  } else if (!std::isfinite(value)) {
    const auto words = ", or set " + remedies_.missing_words({std::string(text)}) + " if it stands for no value";
    throw Unclear(line, to.column->name,
                  "is '" + shortened(std::string(text)) + "', which float32 cannot hold as a finite number",
                  "correct it" + (has_schema_ ? "" : words));
  } else if ((value >= exact_whole || value <= -exact_whole) && std::trunc(value) == value) {
    std::int64_t exact = 0;  // float64 may round it too
    const auto* end = text.data() + text.size();
    const bool is_exact = std::from_chars(text.data(), end, exact).ptr == end;
    if (!is_exact && std::abs(value) < exact_wide) exact = static_cast<std::int64_t>(value);
    if (is_exact || std::abs(value) < exact_wide) result.wide[place].push_back(exact);
    if (is_rounded(text, to.notation, value)) note_rounded(to, text, place, line, result);
  }
  to.numbers[row * to.stride] = value;
}

void CsvReader::put_date(const Destination& to, std::string_view text, std::int64_t row, std::size_t place,
                         std::int64_t line, PartResult& result) const {
  DateNumbers numbers;
  if (words_.has(text)) {
    const bool drops = options_.fill == CsvFill::drop && table_.schema.target;
    result.missing[place].add(text);
    require_value(to, text, line, has_schema_ ? !to.column->fills.empty() || drops : options_.fill != CsvFill::refuse);
    numbers.fill(std::numeric_limits<double>::quiet_NaN());
  } else if (!parse_date(text, to.form, numbers) && !(has_schema_ && parse_date(text, {}, numbers))) {
    const std::string place = has_schema_ ? "training (" : "other lines (";
    auto odd = remedies_.of_text(line, to.column->name, text, ", and not a date as in " + place + to.column->form + ")",
                                 false);
    if (has_schema_) {
      odd.type = odd.key = odd.cell = "", odd.remedy = "correct it";
      if (possible_date(text).is_date) {
        odd.remedy = "write it so, or set " + types_key(to.column->name, "day-month-year") + " or \"month-day-year\"";
      }
    }
    throw odd;
  }
  std::copy_n(numbers.begin(), date_parts - (to.form.has_time ? 0 : 1), to.numbers + row * to.stride);
}

std::int64_t CsvReader::code_of(const Destination& to, std::string_view text, std::size_t place, std::int64_t line,
                                PartResult& result) const {
  if (words_.has(text)) {
    const bool fills = options_.fill != CsvFill::refuse && !to.is_group;
    result.missing[place].add(text);
    if (to.is_target && fills) return -1;
    require_value(to, text, line, fills || (*given_)[place].find(""));
    text = "";
  }
  if (!has_schema_ || to.is_group) return result.vocabularies[place].add(text);
  if (const auto code = (*given_)[place].find(text)) return *code;
  double value = 0;
  if (to.is_target && parse_number(text, to.notation, value)) {  // 1.0 is 1
    if (const auto code = (*given_)[place].find(c10::str(value))) return *code;
  }
  if (options_.unknown && !to.is_target) {
    if (!text.empty()) result.unknown[place].add(text);
    return static_cast<std::int64_t>(to.column->vocabulary.size());
  }
  if (text.empty()) require_value(to, text, line, false);
  throw Unclear(line, to.column->name,
                c10::str("is '", shortened(std::string(text)), "', which is none of the ", to.column->vocabulary.size(),
                         " known categories: ", shortened(some_of(to.column->vocabulary))),
                "correct it");
}

void CsvReader::read_part(const CsvPart& part, PartResult& result) const {
  file_->require_unchanged();
  result.vocabularies.resize(names_.size());
  result.unknown.resize(names_.size());
  result.missing.resize(names_.size());
  result.wide.resize(names_.size());
  result.rounded.resize(names_.size());
  CsvRecords records(*file_, part.text, table_.found.separator, part.line);
  std::vector<CsvField> fields;
  auto row = part.row;
  const auto read_cell = [&](const Destination& to, std::string_view text, std::size_t place) {
    const auto line = records.line();
    if (to.codes != nullptr) {
      to.codes[row * to.stride] = code_of(to, text, place, line, result);
    } else if (to.column->type == CsvType::date) {
      put_date(to, text, row, place, line, result);
    } else {
      put_number(to, text, row, place, line, result);
    }
  };
  const auto end = part.row + part.rows;
  for (; row < end && records.next(fields); ++row) {
    check_length(fields, records.line());
    for (std::size_t place = 0; place < fields.size(); ++place) {
      if (destinations_[place].column == nullptr || (!result.unclear.empty() && result.unclear.contains(place)))
        continue;
      try {
        read_cell(destinations_[place], fields[place].text(), place);
      } catch (const Unclear& odd) {
        result.unclear.emplace(place, odd);
      }
    }
    if (records.more_lines() > 0) result.long_rows.emplace_back(row, records.more_lines());
  }
  file_->forget(part.text);
  if (row == end && !records.next(fields)) return;
  file_->require_unchanged();  // a better reason
  file_->refuse(c10::str("has a wrong quote at or after line ", part.line));
}

// Each part has codes of its own; they become those of the whole file.
void CsvReader::merge_vocabulary(std::size_t place, const std::vector<CsvPart>& parts,
                                 std::vector<PartResult>& results) {
  Vocabulary all;
  std::vector<std::vector<std::int64_t>> codes(parts.size());
  for (std::size_t i = 0; i < parts.size(); ++i) {
    for (const auto* word : results[i].vocabularies[place].words()) codes[i].push_back(all.add(*word));
  }
  auto& vocabulary = destinations_[place].column->vocabulary;
  for (const auto* word : all.words()) vocabulary.push_back(*word);
  if (options_.sorted) {
    sort_words(vocabulary);
    Vocabulary in_order;
    for (const auto& word : vocabulary) in_order.add(word);
    for (auto& of_part : codes) {
      for (auto& code : of_part) code = *in_order.find(*all.words()[static_cast<std::size_t>(code)]);
    }
  }
  const auto& to = destinations_[place];
  for_each_part(parts.size(), [&](std::size_t i) {
    for (auto row = parts[i].row; row < parts[i].row + parts[i].rows; ++row) {
      auto& code = to.codes[row * to.stride];
      if (code >= 0) code = codes[i][static_cast<std::size_t>(code)];
    }
  });
}

void CsvReader::note_missing(const std::vector<PartResult>& results) {
  for (const auto* column : columns()) {
    MissingCells cells;
    for (const auto& result : results) cells.add(result.missing[place_of(column->name)]);
    const bool is_target = table_.schema.target && column == &*table_.schema.target;
    if (!is_target && cells.count > 0) table_.found.filled.emplace_back(column->name, cells.count);
    const bool drops = is_target || (options_.fill == CsvFill::drop && table_.schema.target);
    if (column->type == CsvType::category || has_schema_ || is_target) {
      note_missing_cells(*column, cells, drops, table_.numbers.size(0), remedies_, table_.found.odd);
    }
  }
}

void CsvReader::note_odd(const std::vector<PartResult>& results) {
  auto& odd = table_.found.odd;
  if (!has_schema_ && options_.header && all_numbers(names_)) {
    odd.push_back("the header has numbers alone: if it is a row of data, set header = false");
  }
  for (std::size_t place = 0; place < names_.size(); ++place) {
    UnknownWords unknown;
    std::vector<std::int64_t> wide;
    std::string rounded;
    for (const auto& result : results) {
      if (rounded.empty()) rounded = result.rounded[place];
      unknown.add(result.unknown[place]);
      wide.insert(wide.end(), result.wide[place].begin(), result.wide[place].end());
    }
    const auto rows = table_.numbers.size(0);
    // Many rows without a known word are written in another way. A new word in each row is none of that.
    constexpr std::int64_t many = 20;
    if (unknown.count == rows && rows >= many && std::ssize(unknown.words) * 2 <= rows) {
      file_->refuse(c10::str("column '", shortened(names_[place]), "': ", rows, " of ", rows,
                             " values are unknown, such as '", shortened(unknown.example),
                             "'; write them as in training, such as '",
                             shortened(some_of(destinations_[place].column->vocabulary)), "'"));
    }
    if (unknown.count > 0) {
      odd.push_back(c10::str("column '", shortened(names_[place]), "': ", unknown.count, " of ", rows,
                             " values are unknown, such as '", shortened(unknown.example), "'"));
    }
    if (!has_schema_) note_merged(names_[place], wide, odd);
    if (!rounded.empty()) {
      odd.push_back("column '" + shortened(names_[place]) + "' has whole numbers beyond 2^53, such as " +
                    shortened(rounded) + ", and float64 rounds them");
    }
  }
  if (!has_schema_) note_odd_columns(table_, odd);
}

CsvTable CsvReader::read() {
  auto parts = divide_csv(*file_, text_, table_.first_line, csv_part_bytes);
  std::vector<const CsvReader*> readers(parts.size(), this);  // each part has one
  for (const auto& file : more_) {
    const auto rows = parts.back().row + parts.back().rows;
    table_.more_files.push_back({file->file_->path(), rows, file->table_.first_line});
    for (auto part : divide_csv(*file->file_, file->text_, file->table_.first_line, csv_part_bytes)) {
      part.row += rows;
      parts.push_back(part);
      readers.push_back(file.get());
    }
  }
  const auto rows = parts.back().row + parts.back().rows;
  make_tensors(rows);
  for (const auto& file : more_) {
    file->destinations_ = destinations_;
    file->given_ = given_;
    file->has_schema_ = has_schema_;
    file->remedies_.words = remedies_.words;
    file->table_.schema = table_.schema;
  }
  std::vector<PartResult> results(parts.size());
  for_each_part(parts.size(), [&](std::size_t i) { readers[i]->read_part(parts[i], results[i]); });
  for (std::size_t i = 0; i < parts.size();) {
    const auto* reader = readers[i];
    std::map<std::size_t, Unclear> unclear;  // the first cell of each column
    for (; i < parts.size() && readers[i] == reader; ++i) {
      unclear.insert(results[i].unclear.begin(), results[i].unclear.end());
    }
    std::vector<Unclear> columns;
    for (const auto& [place, odd] : unclear) columns.push_back(odd);
    reader->refuse_unclear(columns);
  }
  for (std::size_t place = 0; place < names_.size(); ++place) {
    const auto& to = destinations_[place];
    if (to.codes != nullptr && (!has_schema_ || to.is_group)) merge_vocabulary(place, parts, results);
  }
  std::int64_t lines = 0;
  for (std::size_t i = 0; i < parts.size(); ++i) {
    if (i > 0 && readers[i] != readers[i - 1]) lines = 0;
    for (const auto& [row, more] : results[i].long_rows) table_.long_rows.emplace_back(row, lines += more);
  }
  for (const auto* reader : readers) reader->file_->require_unchanged();
  if (!has_schema_ && options_.classes && !options_.types.contains(options_.target)) make_classes(table_);
  if (table_.schema.target) refuse_left_out(file_->path() + ":" + options_.target, table_.schema.target->vocabulary);
  drop_rows(table_, options_);
  note_missing(results);
  note_odd(results);
  learn_and_fill(table_, options_, has_schema_, *file_);
  return std::move(table_);
}

namespace {

constexpr const char* pattern_signs = "*?[";

std::vector<std::string> some_files(const std::string& path) {
  const bool is_pattern = path.find_first_of(pattern_signs) != std::string::npos;
  if (!is_pattern) return {path};  // whoever opens it says what is wrong
  auto files = csv_files(path);
  if (files.empty()) refuse("'" + path + "': no file has such a name" + missing_file_hint(path));
  return files;
}

}  // namespace

std::vector<std::string> csv_files(const std::string& path) {
  std::error_code none;
  if (std::filesystem::exists(path, none)) return {path};
  std::vector<std::string> files;
  if (path.find_first_of(pattern_signs) == std::string::npos) return files;
  glob_t found = {};
  const int result = glob(path.c_str(), GLOB_NOSORT, nullptr, &found);
  if (result == 0) files.assign(found.gl_pathv, found.gl_pathv + found.gl_pathc);
  globfree(&found);
  if (result == GLOB_NOSPACE) throw std::bad_alloc();
  std::ranges::sort(files, [](const auto& a, const auto& b) { return strverscmp(a.c_str(), b.c_str()) < 0; });
  return files;
}

CsvTable read_csv(const std::string& path, const CsvOptions& options) {
  CsvReader reader(some_files(path), options);
  reader.choose_columns();
  return reader.read();
}

CsvTable read_csv(const std::string& path, const CsvSchema& schema, const CsvOptions& options) {
  CsvReader reader(some_files(path), options);
  reader.use(schema);
  return reader.read();
}

}  // namespace vernier
