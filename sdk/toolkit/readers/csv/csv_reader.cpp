#include <ATen/ops/empty.h>
#include <c10/util/StringUtil.h>
#include <vernier/csv.h>
#include <vernier/error.h>
#include <vernier/options.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <limits>
#include <set>
#include <unordered_map>

#include "base/parts.h"
#include "csv_learn.h"
#include "csv_look.h"
#include "csv_odd.h"
#include "csv_parser.h"
#include "csv_text.h"
#include "csv_vocabulary.h"

namespace vernier {

namespace {

constexpr std::size_t csv_part_bytes = 4 << 20;
constexpr std::int64_t csv_records_to_infer = 1000;
constexpr float exact_whole = 1 << 24;  // float32 has all whole numbers up to here

// The destination of a column of the file: column `to` of a matrix whose rows are `stride` apart.
struct Destination {
  CsvColumn* column = nullptr;  // nullptr: the column is not read
  bool is_target = false, is_group = false;
  float* numbers = nullptr;
  std::int64_t* codes = nullptr;
  std::int64_t stride = 1;
  Notation notation;
  DateForm form;
};

// The results of a part of the file, by column of the file.
struct PartResult {
  std::vector<Vocabulary> vocabularies;
  std::vector<UnknownWords> unknown;
  std::vector<MissingCells> missing;
  std::vector<std::vector<double>> wide;                         // whole numbers that float32 may round
  std::vector<std::pair<std::int64_t, std::int64_t>> long_rows;  // rows of several lines, and the lines added
};

class CsvReader {
 public:
  CsvReader(const std::string& path, const CsvOptions& options)
      : file_(MappedFile::open(path)),
        options_(options),
        source_(*file_, options),
        words_(options.missing),
        remedies_{options} {
    table_.path = path;
    text_ = source_.text();
    table_.found.separator = options.separator != 0 ? options.separator : find_separator(*file_, text_);
    source_.require_utf8(table_.found.separator);
    read_names();
  }
  void choose_columns();
  void use(const CsvSchema& schema);
  CsvTable read();

 private:
  void read_names();
  void number_around_target();
  void use_options(CsvColumn& column) const;
  std::size_t place_of(const std::string& name, const char* key = "") const;
  void infer_types();
  void doubt(const std::vector<SeenColumn>& seen) const;
  void note_written(const std::vector<SeenColumn>& seen);
  void note_missing(const std::vector<PartResult>& results);
  void make_tensors(std::int64_t rows);
  void read_part(const CsvPart& part, PartResult& result) const;
  void put_number(const Destination& to, std::string_view text, std::int64_t row, std::size_t place, std::int64_t line,
                  PartResult& result) const;
  void put_date(const Destination& to, std::string_view text, std::int64_t row, std::size_t place, std::int64_t line,
                PartResult& result) const;
  std::int64_t code_of(const Destination& to, std::string_view text, std::size_t place, std::int64_t line,
                       PartResult& result) const;
  void require_value(const Destination& to, std::string_view text, std::int64_t line, bool is_filled) const;
  void merge_vocabulary(std::size_t place, const std::vector<CsvPart>& parts, std::vector<PartResult>& results);
  void note_odd(const std::vector<PartResult>& results);
  void check_length(const std::vector<CsvField>& fields, std::int64_t line) const;
  [[noreturn]] void refuse(std::int64_t line, const CsvColumn& column, const std::string& reason) const;
  std::vector<CsvColumn*> columns();

  MappedFilePtr file_;
  const CsvOptions& options_;
  CsvText source_;
  MissingWords words_;
  Remedies remedies_;
  bool has_schema_ = false;
  std::string_view text_;                                // the records
  std::vector<std::string> names_;                       // of the file's columns
  std::unordered_map<std::string, std::size_t> places_;  // of names_
  std::vector<Destination> destinations_;
  std::vector<Vocabulary> given_;  // those of the schema, by column of the file
  CsvColumn group_;
  CsvTable table_;
};

void CsvReader::read_names() {
  const auto first = 1 + options_.skip_lines;
  CsvRecords records(*file_, text_, table_.found.separator, first);
  std::vector<CsvField> fields;
  records.next(fields);
  for (std::size_t i = 0; i < fields.size(); ++i) {
    names_.push_back(options_.header ? std::string(fields[i].text()) : std::to_string(i + 1));
  }
  for (std::size_t i = 0; i < names_.size(); ++i) {
    if (!places_.emplace(names_[i], i).second) {
      file_->refuse("has two columns named '" + shortened(names_[i]) +
                    "'; rename one, or set header = false if the first line has no names");
    }
  }
  destinations_.resize(names_.size());
  given_.resize(names_.size());
  table_.first_line = first;
  if (!options_.header) return;
  text_.remove_prefix(static_cast<std::size_t>(records.rest() - text_.data()));
  table_.first_line = first + 1 + records.more_lines();
  if (text_.empty()) file_->refuse("has a header and no records");
  CsvRecords below(*file_, text_, table_.found.separator, table_.first_line);
  // Below a title, the first record with all fields may come later.
  const int records_to_check = names_.size() == 1 ? 10 : 1;
  for (int i = 0; i < records_to_check && below.next(fields); ++i) check_length(fields, below.line());
}

// A file without names and without the target: the columns behind the target have the numbers that they have with it.
void CsvReader::number_around_target() {
  const auto target = std::ranges::find(names_, options_.target);
  for (auto name = target; name != names_.end(); ++name) *name = std::to_string(name - names_.begin() + 2);
  places_.clear();
  for (std::size_t i = 0; i < names_.size(); ++i) places_.emplace(names_[i], i);
}

// key: of the TOML that names the column.
std::size_t CsvReader::place_of(const std::string& name, const char* key) const {
  const auto found = places_.find(name);
  if (found != places_.end()) return found->second;
  const auto lower = [](std::string text) {
    for (auto& c : text) c = static_cast<char>(c >= 'A' && c <= 'Z' ? c | 0x20 : c);
    return text;
  };
  std::string near = name.size() > 2 ? nearest(name, names_) : "";
  for (const auto& each : names_) {
    if (lower(each) == lower(name)) near = each;
  }
  file_->refuse("has no column '" + shortened(name) + "'" + (*key != 0 ? " for `" + std::string(key) + "`" : "") +
                "; its columns are " + shortened(some_of(names_)) +
                (near.empty() ? "" : "; did you mean '" + shortened(near) + "'?"));
}

void CsvReader::choose_columns() {
  auto inputs = options_.columns;
  const std::set<std::string> without(options_.leave_out.begin(), options_.leave_out.end());
  for (const auto& name : without) place_of(name, "leave_out");
  if (!options_.target.empty()) place_of(options_.target, "target");
  if (!options_.group.empty()) place_of(options_.group, "split");
  const bool has_all = inputs.empty();
  if (has_all) {
    std::ranges::copy_if(names_, std::back_inserter(inputs), [&](const auto& name) {
      return (options_.target.empty() || name != options_.target) && !without.contains(name) &&
             (options_.group.empty() || name != options_.group);
    });
  }
  std::set<std::string> seen;
  for (const auto& name : inputs) {
    place_of(name, "columns");
    if (!seen.insert(name).second) vernier::refuse("the columns to read have '" + shortened(name) + "' twice");
    table_.schema.columns.push_back({name});
  }
  if (!options_.target.empty()) table_.schema.target = CsvColumn{options_.target};
  const auto refuse_both = [&](const std::string& name, const char* what, const char* more) {
    if (!name.empty() && seen.contains(name)) {
      vernier::refuse("'" + shortened(name) + "' is " + what + " and one of the columns to read" + more);
    }
  };
  refuse_both(options_.target, "the target",
              "; a model that sees its target learns nothing else: leave it out of `columns`");
  refuse_both(options_.group, "the group of the split", "; leave it out of `columns`");
  for (const auto& name : without) refuse_both(name, "left out", "");
  if (without.contains(options_.target) && !options_.target.empty()) {
    vernier::refuse("'" + shortened(options_.target) + "' is the target and cannot be left out");
  }
  for (const auto& [name, type] : options_.types) place_of(name, "types");
  for (const auto& name : names_) {
    if (!seen.contains(name) && name != options_.target) table_.found.left_out.push_back(name);
  }
  infer_types();
}

// Applies the options that may change for another file, and refuses those that cannot.
void CsvReader::use_options(CsvColumn& column) const {
  const auto name = "column '" + shortened(column.name) + "'";
  if (std::ranges::find(options_.leave_out, column.name) != options_.leave_out.end()) {
    file_->refuse(name + " is one of `leave_out`, and the trained model needs it");
  }
  using enum CsvType;
  const auto given = options_.types.find(column.name);
  if (given != options_.types.end()) {
    const bool is_date = given->second != number && given->second != category;
    if ((is_date ? date : given->second) != column.type) {
      file_->refuse(name + " has another type in the trained model than `types` says, which cannot be changed");
    }
    auto form = DateForm::parse(column.form);
    if (given->second == day_first) form.order = DateForm::Order::day_first;
    if (given->second == month_first) form.order = DateForm::Order::month_first;
    if (is_date) column.form = form.text();
  }
  const std::vector<float> zeros(column.type == category ? 0 : numbers_of(column).size(), 0.0F);
  const auto& fills = options_.fill == CsvFill::zero ? zeros : column.means;
  if (column.type == category || fills.empty()) return;
  const bool has_fill = column.fill || !column.fills.empty();
  if (options_.fill != CsvFill::zero && (options_.fill != CsvFill::mean || has_fill)) return;
  column.type == date ? void(column.fills = fills) : void(column.fill = fills[0]);
}

void CsvReader::use(const CsvSchema& schema) {
  has_schema_ = true;
  table_.schema = schema;
  const bool has_all_inputs = options_.columns.empty() && names_.size() == schema.columns.size();
  if (!options_.header && !schema.target && has_all_inputs) number_around_target();
  for (auto& column : table_.schema.columns) use_options(column);
  for (auto* column : columns()) {
    auto& vocabulary = given_[place_of(column->name)];
    for (const auto& word : column->vocabulary) vocabulary.add(word);
  }
}

std::vector<CsvColumn*> CsvReader::columns() {
  std::vector<CsvColumn*> all;
  for (auto& column : table_.schema.columns) all.push_back(&column);
  if (table_.schema.target) all.push_back(&*table_.schema.target);
  return all;
}

void CsvReader::infer_types() {
  std::vector<SeenColumn> seen(names_.size());
  CsvRecords records(*file_, text_, table_.found.separator, table_.first_line);
  std::vector<CsvField> fields;
  for (std::int64_t i = 0; i < csv_records_to_infer && records.next(fields); ++i) {
    check_length(fields, records.line());
    for (std::size_t place = 0; place < fields.size(); ++place) {
      const auto text = fields[place].text();
      if (!words_.has(text)) {
        seen[place].add(text, records.line(), {options_.decimal, options_.thousands, false});
        seen[place].has_name = seen[place].has_name || text == names_[place];
      } else if (!text.empty()) {
        remedies_.words.insert(std::string(text));
      }
    }
  }
  doubt(seen);
  for (auto* column : columns()) {
    choose_type(
        *column, seen[place_of(column->name)], remedies_,
        [this](std::int64_t line, const CsvColumn& of, const std::string& reason) { refuse(line, of, reason); });
    if (column->type == CsvType::number && options_.fill == CsvFill::zero) column->fill = 0;
    if (column->type == CsvType::date && options_.fill == CsvFill::zero) {
      column->fills.assign(numbers_of(*column).size(), 0);
    }
  }
  if (table_.schema.target && table_.schema.target->type == CsvType::date) {
    file_->refuse("column '" + shortened(options_.target) +
                  "' has dates, and is the target; predict a number or a class, or set " +
                  types_key(options_.target, "category"));
  }
  note_written(seen);
}

// Refuses what can be read in two ways, where no option says which.
void CsvReader::doubt(const std::vector<SeenColumn>& seen) const {
  const Notation notation{options_.decimal, options_.thousands, false};
  if (options_.doubts_header && options_.header && looks_like_record(names_, seen, words_, notation)) {
    file_->refuse(c10::str("line ", 1 + options_.skip_lines, " has values such as '", shortened(names_.front()),
                           "' where names belong; set header = false, or header = true if they are names"));
  }
  if (!options_.doubts_points || notation.thousands != 0 || notation.decimal != '.') return;
  if (std::ranges::any_of(seen, [](const auto& column) { return column.written.others_with_point > 0; })) return;
  for (std::size_t place = 0; place < names_.size(); ++place) {
    const auto& written = seen[place].written;
    if (seen[place].texts > 0 || !written.doubts_points(table_.found.separator == ';')) continue;
    if (std::ranges::find(table_.found.left_out, names_[place]) != table_.found.left_out.end()) continue;
    refuse(written.group_line, {names_[place]},
           "is '" + written.group +
               "', which may have decimals or thousands; set decimal = \".\", or decimal = \",\" "
               "and thousands = \".\"");
  }
}

// Notes numbers that may be names, dates or no value.
void CsvReader::note_written(const std::vector<SeenColumn>& seen) {
  for (const auto* column : columns()) {
    if (column->type != CsvType::number || options_.types.contains(column->name)) continue;
    const auto& written = seen[place_of(column->name)].written;
    const auto name = "column '" + shortened(column->name) + "'";
    auto& odd = table_.found.odd;
    if (written.padded > 0) {
      odd.push_back(name + " has numbers with leading zeros, such as " + written.padding +
                    ", which are lost; if they are names, set " + types_key(column->name, "category"));
    }
    if (written.dates > 0 && written.dates == written.count) {
      odd.push_back(name + " has numbers such as " + written.date + "; if they are dates, set " +
                    types_key(column->name, "date"));
    }
    const auto sentinel = written.sentinel();
    if (!sentinel.empty()) {
      odd.push_back(name + " has " + sentinel + ", far from all other numbers; if it stands for no value, set " +
                    remedies_.missing_words(sentinel));
    }
  }
}

void CsvReader::make_tensors(std::int64_t rows) {
  std::int64_t numbers = 0, categories = 0;
  for (const auto& column : table_.schema.columns) {
    numbers += std::ssize(numbers_of(column));
    categories += column.type == CsvType::category ? 1 : 0;
  }
  table_.numbers = at::empty({rows, numbers}, torch::kFloat32);
  table_.categories = at::empty({rows, categories}, torch::kInt64);
  auto* number = numbers > 0 ? table_.numbers.mutable_data_ptr<float>() : nullptr;
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
  table_.target = at::empty({rows}, is_number ? torch::kFloat32 : torch::kInt64);
  if (is_number) {
    target.numbers = table_.target.mutable_data_ptr<float>();
  } else {
    target.codes = table_.target.mutable_data_ptr<std::int64_t>();
  }
}

void CsvReader::check_length(const std::vector<CsvField>& fields, std::int64_t line) const {
  if (fields.size() == names_.size()) return;
  const bool is_empty = fields.size() == 1 && fields[0].raw.empty();
  if (is_empty && names_.size() > 1) file_->refuse(c10::str("line ", line, " is empty; remove it"));
  const bool is_title =
      (line == table_.first_line || names_.size() == 1) && options_.header && options_.skip_lines == 0;
  file_->refuse(c10::str("line ", line, " has ", fields.size(), fields.size() == 1 ? " field, " : " fields, ",
                         options_.header ? "the header has " : "the first line has ", names_.size(),
                         is_title ? c10::str("; if the first line is not a header, set skip_lines = ", line - 1,
                                             ", and header = false if no names follow")
                                  : std::string("; correct the line")));
}

void CsvReader::refuse(std::int64_t line, const CsvColumn& column, const std::string& reason) const {
  file_->refuse(c10::str("line ", line, ", column '", shortened(column.name), "' ", reason));
}

void CsvReader::require_value(const Destination& to, std::string_view text, std::int64_t line, bool is_filled) const {
  if (is_filled) return;
  const auto word = shortened(std::string(text));
  const std::string role = to.is_target  ? ", and it is the target"
                           : to.is_group ? ", and it is the group of the split"
                                         : "";
  std::string remedy = "; remove the line";
  if (!text.empty() && to.codes != nullptr) {
    remedy = "; if it is a word, set " + remedies_.missing_words("", std::string(text)) + ", or else remove the line";
  }
  if (to.is_target && !has_schema_) remedy += ", or set missing = \"drop\", or \"mean\", which drop it too";
  if (!to.is_target && !to.is_group) {
    const auto& advice = options_.fill_remedy;
    const auto place = advice.find("{}");
    remedy += ", or " + advice.substr(0, place);
    if (place != std::string::npos) remedy += shortened(to.column->name) + advice.substr(place + 2);
  }
  refuse(line, *to.column,
         (text.empty() ? "has no value" : "is '" + word + "', which stands for no value") + role + remedy);
}

void CsvReader::put_number(const Destination& to, std::string_view text, std::int64_t row, std::size_t place,
                           std::int64_t line, PartResult& result) const {
  float value = 0;
  const bool drops = options_.fill == CsvFill::drop && (to.is_target || table_.schema.target);
  if (words_.has(text)) {
    result.missing[place].add(text);
    require_value(to, text, line,
                  to.is_target  ? options_.fill != CsvFill::refuse
                  : has_schema_ ? to.column->fill.has_value() || drops || options_.fill == CsvFill::previous
                                : options_.fill != CsvFill::refuse);
    value = std::numeric_limits<float>::quiet_NaN();
  } else if (!parse_number(text, to.notation, value)) {
    refuse(line, *to.column,
           "is '" + shortened(std::string(text)) + "', which is not a number; " +
               remedies_.of_text(to.column->name, text, to.is_target));
  } else if (!std::isfinite(value)) {
    refuse(line, *to.column, "is '" + shortened(std::string(text)) + "', which float32 cannot hold as a finite number");
  } else if ((value >= exact_whole || value <= -exact_whole) && std::trunc(value) == value) {
    double exact = 0;
    const auto* end = text.data() + text.size();
    if (std::from_chars(text.data(), end, exact).ptr == end) result.wide[place].push_back(exact);
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
    numbers.fill(std::numeric_limits<float>::quiet_NaN());
  } else if (!parse_date(text, to.form, numbers) && !(has_schema_ && parse_date(text, {}, numbers))) {
    refuse(line, *to.column,
           "is '" + shortened(std::string(text)) + "', and not a date as in " +
               (has_schema_ ? "training (" : "other lines (") + to.column->form + "); " +
               (has_schema_ && look_of_date(text).is_date
                    ? "write it so, or set " + types_key(to.column->name, "day-month-year") + " or \"month-day-year\""
                    : remedies_.of_text(to.column->name, text, false)));
  }
  std::copy_n(numbers.begin(), date_parts - (to.form.has_time ? 0 : 1), to.numbers + row * to.stride);
}

std::int64_t CsvReader::code_of(const Destination& to, std::string_view text, std::size_t place, std::int64_t line,
                                PartResult& result) const {
  if (words_.has(text)) {
    const bool fills = options_.fill != CsvFill::refuse && !to.is_group;
    result.missing[place].add(text);
    if (to.is_target && fills) return -1;
    require_value(to, text, line, fills || given_[place].find(""));
    text = "";
  }
  if (!has_schema_ || to.is_group) return result.vocabularies[place].add(text);
  if (const auto code = given_[place].find(text)) return *code;
  float value = 0;
  if (to.is_target && parse_number(text, to.notation, value)) {  // 1.0 is 1
    if (const auto code = given_[place].find(c10::str(value))) return *code;
  }
  if (options_.unknown && !to.is_target) {
    if (!text.empty()) result.unknown[place].add(text);
    return static_cast<std::int64_t>(to.column->vocabulary.size());
  }
  if (text.empty()) require_value(to, text, line, false);
  refuse(line, *to.column,
         c10::str("is '", shortened(std::string(text)), "', which is none of the ", to.column->vocabulary.size(),
                  " known categories: ", shortened(some_of(to.column->vocabulary))));
}

void CsvReader::read_part(const CsvPart& part, PartResult& result) const {
  file_->require_unchanged();
  result.vocabularies.resize(names_.size());
  result.unknown.resize(names_.size());
  result.missing.resize(names_.size());
  result.wide.resize(names_.size());
  CsvRecords records(*file_, part.text, table_.found.separator, part.line);
  std::vector<CsvField> fields;
  auto row = part.row;
  const auto end = part.row + part.rows;
  for (; row < end && records.next(fields); ++row) {
    check_length(fields, records.line());
    for (std::size_t place = 0; place < fields.size(); ++place) {
      const auto& to = destinations_[place];
      if (to.codes != nullptr) {
        to.codes[row * to.stride] = code_of(to, fields[place].text(), place, records.line(), result);
      } else if (to.numbers != nullptr && to.column->type == CsvType::date) {
        put_date(to, fields[place].text(), row, place, records.line(), result);
      } else if (to.numbers != nullptr) {
        put_number(to, fields[place].text(), row, place, records.line(), result);
      }
    }
    if (records.more_lines() > 0) result.long_rows.emplace_back(row, records.more_lines());
  }
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

// Counts the cells without a value, and notes words that stand for none: they may be words after all.
void CsvReader::note_missing(const std::vector<PartResult>& results) {
  for (const auto* column : columns()) {
    MissingCells cells;
    for (const auto& result : results) cells.add(result.missing[place_of(column->name)]);
    if (cells.count == 0) continue;
    const bool is_target = table_.schema.target && column == &*table_.schema.target;
    if (!is_target) table_.found.filled.emplace_back(column->name, cells.count);
    const auto name = "column '" + shortened(column->name) + "': ";
    const bool drops = is_target || (options_.fill == CsvFill::drop && table_.schema.target);
    const auto* outcome = drops                               ? "their rows are not used"
                          : column->type == CsvType::category ? "they are a category of their own"
                                                              : "they are filled in";
    if (column->type == CsvType::category && cells.words.count > 0) {
      table_.found.odd.push_back(c10::str(name, cells.words.count,
                                          cells.words.count == 1 ? " cell is '" : " cells are words such as '",
                                          shortened(cells.words.example), "', which stand for no value: ", outcome,
                                          "; if it is a word, set ", remedies_.missing_words("", cells.words.example)));
    } else if (has_schema_ || is_target) {
      table_.found.odd.push_back(
          c10::str(name, cells.count, " of ", table_.numbers.size(0), " values are missing: ", outcome));
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
    std::vector<double> wide;
    for (const auto& result : results) {
      unknown.add(result.unknown[place]);
      wide.insert(wide.end(), result.wide[place].begin(), result.wide[place].end());
    }
    const auto rows = table_.numbers.size(0);
    if (unknown.count == rows) {
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
  }
  if (!has_schema_) note_odd_columns(table_, odd);
}

CsvTable CsvReader::read() {
  const auto parts = divide_csv(text_, table_.first_line, csv_part_bytes);
  const auto rows = parts.back().row + parts.back().rows;
  make_tensors(rows);
  std::vector<PartResult> results(parts.size());
  for_each_part(parts.size(), [&](std::size_t i) { read_part(parts[i], results[i]); });
  for (std::size_t place = 0; place < names_.size(); ++place) {
    const auto& to = destinations_[place];
    if (to.codes != nullptr && (!has_schema_ || to.is_group)) merge_vocabulary(place, parts, results);
  }
  std::int64_t lines = 0;
  for (const auto& result : results) {
    for (const auto& [row, more] : result.long_rows) table_.long_rows.emplace_back(row, lines += more);
  }
  file_->require_unchanged();
  if (!has_schema_ && options_.classes) make_classes(table_);
  drop_rows(table_, options_);
  note_missing(results);
  note_odd(results);
  learn_and_fill(table_, options_, has_schema_, *file_);
  return std::move(table_);
}

}  // namespace

CsvTable read_csv(const std::string& path, const CsvOptions& options) {
  CsvReader reader(path, options);
  reader.choose_columns();
  return reader.read();
}

CsvTable read_csv(const std::string& path, const CsvSchema& schema, const CsvOptions& options) {
  CsvReader reader(path, options);
  reader.use(schema);
  return reader.read();
}

}  // namespace vernier
