#include <ATen/ops/empty.h>
#include <c10/util/StringUtil.h>
#include <vernier/checksum.h>
#include <vernier/csv.h>
#include <vernier/error.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>
#include <set>
#include <unordered_map>

#include "base/parts.h"
#include "csv_parser.h"
#include "data/tensor_dataset.h"

namespace vernier {

namespace {

constexpr std::size_t csv_part_bytes = 4 << 20;
constexpr std::int64_t csv_records_to_infer = 1000;

// The codes of categories, in the order in which they were added.
class Vocabulary {
 public:
  std::int64_t add(std::string_view word) {
    const auto known = codes_.find(word);
    if (known != codes_.end()) return known->second;
    const auto added = codes_.emplace(word, static_cast<std::int64_t>(words_.size())).first;
    words_.push_back(&added->first);
    return added->second;
  }
  std::optional<std::int64_t> find(std::string_view word) const {
    const auto known = codes_.find(word);
    return known == codes_.end() ? std::nullopt : std::optional(known->second);
  }
  const std::vector<const std::string*>& words() const { return words_; }

 private:
  struct Hash {
    using is_transparent = void;
    std::size_t operator()(std::string_view text) const { return std::hash<std::string_view>()(text); }
  };
  std::unordered_map<std::string, std::int64_t, Hash, std::equal_to<>> codes_;
  std::vector<const std::string*> words_;  // of codes_, whose nodes stay where they are
};

// The destination of a column of the file: column `to` of a matrix whose rows are `stride` apart.
struct Destination {
  CsvColumn* column = nullptr;  // nullptr: the column is not read
  bool is_target = false;
  float* numbers = nullptr;
  std::int64_t* codes = nullptr;
  std::int64_t stride = 1;
};

// Sums over a part of the file, by column of the file.
struct PartResult {
  std::vector<double> sums;
  std::vector<std::int64_t> counts, missing;
  std::vector<Vocabulary> vocabularies;
  std::vector<std::pair<std::int64_t, std::int64_t>> long_rows;  // rows of several lines, and the lines added
};

class CsvReader {
 public:
  CsvReader(const std::string& path, const CsvOptions& options)
      : file_(MappedFile::open(path)), options_(options), words_(options.missing) {
    table_.path = path;
    find_text();
    read_names();
  }
  void choose_columns();
  void use(const CsvSchema& schema);
  CsvTable read();

 private:
  struct Seen {
    std::int64_t numbers = 0, texts = 0;
    std::string example;  // the first text
    std::int64_t line = 0;
  };
  void find_text();
  void read_names();
  void number_around_target();
  std::size_t place_of(const std::string& name) const;
  std::vector<Seen> look_at_first_records() const;
  void infer_types();
  void make_tensors(std::int64_t rows);
  void read_part(const CsvPart& part, PartResult& result) const;
  void put_number(const Destination& to, std::string_view text, std::int64_t row, std::size_t place, std::int64_t line,
                  PartResult& result) const;
  std::int64_t code_of(const Destination& to, std::string_view text, std::size_t place, std::int64_t line,
                       PartResult& result) const;
  void require_value(const Destination& to, std::int64_t line, bool is_filled) const;
  void merge_vocabulary(std::size_t place, const std::vector<CsvPart>& parts, std::vector<PartResult>& results);
  void fill(std::size_t place, const std::vector<PartResult>& results, std::int64_t rows);
  void check_length(const std::vector<CsvField>& fields, std::int64_t line) const;
  [[noreturn]] void refuse(std::int64_t line, const CsvColumn& column, const std::string& reason) const;
  std::vector<CsvColumn*> columns();

  MappedFilePtr file_;
  const CsvOptions& options_;
  MissingWords words_;
  bool has_schema_ = false;
  std::string_view text_;           // the records
  std::vector<std::string> names_;  // of the file's columns
  std::vector<Destination> destinations_;
  std::vector<Vocabulary> given_;  // those of the schema, by column of the file
  CsvTable table_;
};

// Leaves out the byte-order mark and the line ends at the end.
void CsvReader::find_text() {
  text_ = file_->bytes();
  if (text_.empty()) file_->refuse("is empty");
  if (text_.starts_with("\xff\xfe") || text_.starts_with("\xfe\xff")) {
    file_->refuse("is UTF-16; save it as UTF-8");
  }
  if (text_.starts_with("\xef\xbb\xbf")) text_.remove_prefix(3);
  const auto last = text_.find_last_not_of("\r\n");
  text_ = text_.substr(0, last == std::string_view::npos ? 0 : last + 1);
  if (text_.empty()) file_->refuse("has no records: there are only line ends in it");
}

void CsvReader::read_names() {
  CsvRecords records(*file_, text_, options_.separator, 1);
  std::vector<CsvField> fields;
  records.next(fields);
  for (std::size_t i = 0; i < fields.size(); ++i) {
    names_.push_back(options_.header ? std::string(fields[i].text()) : std::to_string(i + 1));
  }
  const std::set<std::string> different(names_.begin(), names_.end());
  for (const auto& name : different) {
    if (std::ranges::count(names_, name) > 1) file_->refuse("has two columns named '" + shortened(name) + "'");
  }
  destinations_.resize(names_.size());
  given_.resize(names_.size());
  if (!options_.header) return;
  text_.remove_prefix(static_cast<std::size_t>(records.rest() - text_.data()));
  table_.first_line = 2 + records.more_lines();
  if (text_.empty()) file_->refuse("has a header and no records");
}

// A file without names and without the target: the columns behind the target have the numbers that they have with it.
void CsvReader::number_around_target() {
  const auto target = std::ranges::find(names_, options_.target);
  for (auto name = target; name != names_.end(); ++name) *name = std::to_string(name - names_.begin() + 2);
}

std::size_t CsvReader::place_of(const std::string& name) const {
  const auto found = std::ranges::find(names_, name);
  if (found == names_.end()) {
    file_->refuse("has no column '" + shortened(name) + "'; its columns are " + shortened(some_of(names_)));
  }
  return static_cast<std::size_t>(found - names_.begin());
}

void CsvReader::choose_columns() {
  auto inputs = options_.columns;
  if (inputs.empty()) {
    std::ranges::copy_if(names_, std::back_inserter(inputs),
                         [&](const auto& name) { return options_.target.empty() || name != options_.target; });
  }
  std::set<std::string> seen;
  for (const auto& name : inputs) {
    if (!seen.insert(name).second) vernier::refuse("the columns to read have '" + shortened(name) + "' twice");
    table_.schema.columns.push_back({name, CsvType::number, {}, {}});
  }
  if (!options_.target.empty()) table_.schema.target = {options_.target, CsvType::number, {}, {}};
  if (!options_.target.empty() && seen.contains(options_.target)) {
    vernier::refuse("'" + shortened(options_.target) + "' is the target and one of the columns to read");
  }
  for (const auto& [name, type] : options_.types) place_of(name);
  infer_types();
}

void CsvReader::use(const CsvSchema& schema) {
  has_schema_ = true;
  table_.schema = schema;
  const bool has_all_inputs = options_.columns.empty() && names_.size() == schema.columns.size();
  if (!options_.header && !schema.target && has_all_inputs) number_around_target();
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

// Counts what the first records have in each column of the file.
std::vector<CsvReader::Seen> CsvReader::look_at_first_records() const {
  std::vector<Seen> seen(names_.size());
  CsvRecords records(*file_, text_, options_.separator, table_.first_line);
  std::vector<CsvField> fields;
  for (std::int64_t i = 0; i < csv_records_to_infer && records.next(fields); ++i) {
    check_length(fields, records.line());
    for (std::size_t place = 0; place < fields.size(); ++place) {
      const auto text = fields[place].text();
      float value = 0;
      if (words_.has(text)) continue;
      if (parse_number(text, value)) {
        ++seen[place].numbers;
      } else if (seen[place].texts++ == 0) {
        seen[place].example = text;
        seen[place].line = records.line();
      }
    }
  }
  return seen;
}

void CsvReader::infer_types() {
  const auto seen = look_at_first_records();
  for (auto* column : columns()) {
    const auto given = options_.types.find(column->name);
    const auto& has = seen[place_of(column->name)];
    if (given != options_.types.end()) {
      column->type = given->second;
    } else if (has.numbers > 0 && has.texts > 0) {
      refuse(has.line, *column,
             "is '" + shortened(has.example) + "', and other lines have numbers there; correct it, list it as a " +
                 "missing value, or give the type of the column: number or category");
    } else {
      column->type = has.texts > 0 ? CsvType::category : CsvType::number;
    }
    if (column->type == CsvType::number && options_.fill == CsvFill::zero) column->fill = 0;
  }
}

void CsvReader::make_tensors(std::int64_t rows) {
  const auto is_number = [](const CsvColumn& column) { return column.type == CsvType::number; };
  const auto numbers = std::ranges::count_if(table_.schema.columns, is_number);
  const auto categories = static_cast<std::int64_t>(table_.schema.columns.size()) - numbers;
  table_.numbers = at::empty({rows, numbers}, torch::kFloat32);
  table_.categories = at::empty({rows, categories}, torch::kInt64);
  auto* number = numbers > 0 ? table_.numbers.mutable_data_ptr<float>() : nullptr;
  auto* code = categories > 0 ? table_.categories.mutable_data_ptr<std::int64_t>() : nullptr;
  for (auto& column : table_.schema.columns) {
    auto& to = destinations_[place_of(column.name)];
    to.column = &column;
    to.stride = is_number(column) ? numbers : categories;
    if (is_number(column)) to.numbers = number++;
    if (!is_number(column)) to.codes = code++;
  }
  if (!table_.schema.target) return;
  auto& target = destinations_[place_of(table_.schema.target->name)];
  target.column = &*table_.schema.target;
  target.is_target = true;
  table_.target = at::empty({rows}, is_number(*target.column) ? torch::kFloat32 : torch::kInt64);
  if (is_number(*target.column)) {
    target.numbers = table_.target.mutable_data_ptr<float>();
  } else {
    target.codes = table_.target.mutable_data_ptr<std::int64_t>();
  }
}

void CsvReader::refuse(std::int64_t line, const CsvColumn& column, const std::string& reason) const {
  file_->refuse(c10::str("line ", line, ", column '", shortened(column.name), "' ", reason));
}

void CsvReader::check_length(const std::vector<CsvField>& fields, std::int64_t line) const {
  if (fields.size() == names_.size()) return;
  if (fields.size() == 1 && fields[0].raw.empty()) file_->refuse(c10::str("line ", line, " is empty"));
  file_->refuse(c10::str("line ", line, " has ", fields.size(), fields.size() == 1 ? " field" : " fields", ", the ",
                         options_.header ? "header" : "first line", " has ", names_.size(),
                         "; fields are separated by '", printable({options_.separator}), "'"));
}

void CsvReader::require_value(const Destination& to, std::int64_t line, bool is_filled) const {
  if (to.is_target) refuse(line, *to.column, "has no value, and it is the target; remove the line");
  if (!is_filled) refuse(line, *to.column, "has no value; remove the line, or let missing values be filled");
}

void CsvReader::put_number(const Destination& to, std::string_view text, std::int64_t row, std::size_t place,
                           std::int64_t line, PartResult& result) const {
  float value = 0;
  if (words_.has(text)) {
    require_value(to, line, to.column->fill || (!has_schema_ && options_.fill == CsvFill::mean));
    value = std::numeric_limits<float>::quiet_NaN();
    ++result.missing[place];
  } else if (!parse_number(text, value)) {
    refuse(line, *to.column,
           "is '" + shortened(std::string(text)) +
               "', which is not a number; correct it, list it as a missing value, or " + "make the column a category");
  } else if (!std::isfinite(value)) {
    refuse(line, *to.column, "is '" + shortened(std::string(text)) + "', which float32 cannot hold as a finite number");
  } else {
    result.sums[place] += value;
    ++result.counts[place];
  }
  to.numbers[row * to.stride] = value;
}

std::int64_t CsvReader::code_of(const Destination& to, std::string_view text, std::size_t place, std::int64_t line,
                                PartResult& result) const {
  if (words_.has(text)) {
    require_value(to, line, options_.fill != CsvFill::refuse || given_[place].find(""));
    text = "";
  }
  if (!has_schema_) return result.vocabularies[place].add(text);
  if (const auto code = given_[place].find(text)) return *code;
  if (options_.unknown && !to.is_target) return static_cast<std::int64_t>(to.column->vocabulary.size());
  if (text.empty()) require_value(to, line, false);
  refuse(line, *to.column,
         c10::str("is '", shortened(std::string(text)), "', which is none of the ", to.column->vocabulary.size(),
                  " known categories: ", shortened(some_of(to.column->vocabulary))));
}

void CsvReader::read_part(const CsvPart& part, PartResult& result) const {
  file_->require_unchanged();
  result.sums.resize(names_.size());
  result.counts.resize(names_.size());
  result.missing.resize(names_.size());
  result.vocabularies.resize(names_.size());
  CsvRecords records(*file_, part.text, options_.separator, part.line);
  std::vector<CsvField> fields;
  auto row = part.row;
  const auto end = part.row + part.rows;
  for (; row < end && records.next(fields); ++row) {
    check_length(fields, records.line());
    for (std::size_t place = 0; place < fields.size(); ++place) {
      const auto& to = destinations_[place];
      if (to.numbers != nullptr) put_number(to, fields[place].text(), row, place, records.line(), result);
      if (to.codes != nullptr) {
        to.codes[row * to.stride] = code_of(to, fields[place].text(), place, records.line(), result);
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
    std::ranges::sort(vocabulary);
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
      code = codes[i][static_cast<std::size_t>(code)];
    }
  });
}

void CsvReader::fill(std::size_t place, const std::vector<PartResult>& results, std::int64_t rows) {
  double sum = 0;
  std::int64_t count = 0, missing = 0;
  for (const auto& result : results) {
    sum += result.sums[place];
    count += result.counts[place];
    missing += result.missing[place];
  }
  const auto& to = destinations_[place];
  if (!has_schema_ && options_.fill == CsvFill::mean && !to.is_target) {
    if (count == 0) file_->refuse("column '" + shortened(names_[place]) + "' has no value, and so no mean to fill in");
    to.column->fill = static_cast<float>(sum / static_cast<double>(count));
  }
  for (std::int64_t row = 0; missing > 0 && row < rows; ++row) {
    auto& value = to.numbers[row * to.stride];
    if (std::isnan(value)) value = *to.column->fill;
  }
}

CsvTable CsvReader::read() {
  const auto parts = divide_csv(text_, table_.first_line, csv_part_bytes);
  const auto rows = parts.back().row + parts.back().rows;
  make_tensors(rows);
  std::vector<PartResult> results(parts.size());
  for_each_part(parts.size(), [&](std::size_t i) { read_part(parts[i], results[i]); });
  for (std::size_t place = 0; place < names_.size(); ++place) {
    if (destinations_[place].codes != nullptr && !has_schema_) merge_vocabulary(place, parts, results);
    if (destinations_[place].numbers != nullptr) fill(place, results, rows);
  }
  std::int64_t lines = 0;
  for (const auto& result : results) {
    for (const auto& [row, more] : result.long_rows) table_.long_rows.emplace_back(row, lines += more);
  }
  file_->require_unchanged();
  return std::move(table_);
}

class CsvDataset final : public TensorDataset {
 public:
  explicit CsvDataset(CsvTable table) : TensorDataset({table.numbers}), table_(std::move(table)) {
    if (table_.categories.size(1) > 0) tensors_.push_back(table_.categories);
    if (table_.target.defined()) tensors_.push_back(table_.target);
  }
  std::string where(std::int64_t index) const override { return table_.where(index); }
  // The fingerprint of what was read: another choice of columns is another dataset.
  std::string fingerprint() const override {
    Checksum sum;
    for (const auto& tensor : tensors_) sum.add(tensor.const_data_ptr(), tensor.nbytes());
    return c10::str(size(), " rows, XXH3 ", sum.digits());
  }

 private:
  CsvTable table_;
};

}  // namespace

std::string CsvTable::where(std::int64_t row) const {
  const auto after = std::ranges::lower_bound(long_rows, row, {}, [](const auto& entry) { return entry.first; });
  const auto more = after == long_rows.begin() ? 0 : std::prev(after)->second;
  return c10::str("'", path, "' line ", first_line + row + more);
}

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

DatasetPtr csv_dataset(CsvTable table) {
  return std::make_shared<CsvDataset>(std::move(table));
}

}  // namespace vernier
