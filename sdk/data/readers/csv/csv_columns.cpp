#include <c10/util/StringUtil.h>
#include <vernier/data/csv.h>
#include <vernier/error.h>
#include <vernier/options.h>

#include <algorithm>
#include <set>

#include "csv_fit.h"
#include "csv_reader.h"

namespace vernier {

namespace {

constexpr std::int64_t csv_records_to_infer = 1000;
constexpr std::int64_t lines_of_file = std::int64_t{1}
                                       << 40;  // a line of the k-th further file is k times so much more
constexpr std::size_t most_columns = 100'000;  // each takes a fifth of a millisecond

}  // namespace

CsvReader::CsvReader(const std::vector<std::string>& paths, const CsvOptions& options)
    : file_(MappedFile::open(paths.front())),
      options_(options),
      source_(*file_, options),
      words_(options.missing),
      remedies_{options} {
  table_.path = paths.front();
  text_ = source_.text();
  table_.found.separator = options.separator != 0 ? options.separator : find_separator(*file_, text_);
  source_.require_utf8(table_.found.separator);
  read_names();
  for (auto path = paths.begin() + 1; path != paths.end(); ++path) {
    const auto& file = *more_.emplace_back(std::make_unique<CsvReader>(std::vector{*path}, options));
    if (file.names_ == names_) continue;
    file.file_->refuse("has the columns " + shortened(names_of_columns(file.names_)) + ", and '" + file_->path() +
                       "' has " + shortened(names_of_columns(names_)) + "; the files of a table have the same columns");
  }
}

void CsvReader::read_names() {
  const auto first = 1 + options_.skip_lines;
  CsvRecords records(*file_, text_, table_.found.separator, first);
  std::vector<CsvField> fields;
  records.next(fields);
  if (fields.size() > most_columns) {
    file_->refuse(c10::str("has ", fields.size(), " columns, and ", most_columns,
                           " are the most; write so many numbers to a file of NumPy, .npy"));
  }
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
  given_->resize(names_.size());
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

// Gives the columns of a file without names the numbers that they have in the file of the schema. Without the target,
// those behind it have one more; and a file may have the inputs alone, in their order.
void CsvReader::number_as(const CsvSchema& schema) {
  const auto columns = std::ssize(names_), inputs = std::ssize(schema.columns);
  if (columns == schema.width) return;
  if (!schema.target && !options_.target.empty() && columns + 1 == schema.width) {
    const auto target = std::ranges::find(names_, options_.target);
    for (auto name = target; name != names_.end(); ++name) *name = std::to_string(name - names_.begin() + 2);
  } else if (!schema.target && columns == inputs) {
    std::ranges::transform(schema.columns, names_.begin(), &CsvColumn::name);
  } else {
    file_->refuse(c10::str("has ", columns, " columns without names, and the file that was learned from has ",
                           schema.width, "; give it all of them",
                           schema.target ? "" : c10::str(", all but the target, or the ", inputs, " inputs alone")));
  }
  places_.clear();
  for (std::size_t i = 0; i < names_.size(); ++i) places_.emplace(names_[i], i);
}

// key: of the TOML that names the column; "" if it may be several.
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
                "; its columns are " + shortened(names_of_columns(names_)) +
                (near.empty() ? "" : "; did you mean '" + shortened(near) + "'?"));
}

void CsvReader::choose_columns() {
  if (!options_.header) table_.schema.width = std::ssize(names_);
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
    place_of(name, "");  // checks a name from `columns`, or from a source such as x.csv:price
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

void CsvReader::use(const CsvSchema& schema) {
  has_schema_ = true;
  table_.schema = schema;
  if (!options_.header && schema.width > 0) number_as(schema);
  if (!options_.columns.empty() && !std::ranges::equal(options_.columns, schema.columns, {}, {}, &CsvColumn::name)) {
    file_->refuse("is to be read by other `columns` than the trained model has, which cannot be changed");
  }
  for (auto& column : table_.schema.columns) use_options(column, options_, *file_);
  for (auto* column : columns()) {
    auto& vocabulary = (*given_)[place_of(column->name)];
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
  std::vector<CsvField> fields;
  std::vector<bool> is_late(names_.size());  // nothing stands where a run looks, which reads no whole file for it
  std::int64_t i = 0;
  const auto look_at = [&](const CsvReader& file, std::int64_t lines_before) {
    CsvRecords records(*file.file_, file.text_, file.table_.found.separator, file.table_.first_line);
    for (; (options_.names || i < csv_records_to_infer) && records.next(fields); ++i) {
      file.check_length(fields, records.line());
      for (std::size_t place = 0; i == csv_records_to_infer && place < seen.size(); ++place) {
        is_late[place] = seen[place].numbers + seen[place].texts == 0;
      }
      for (std::size_t place = 0; place < fields.size(); ++place) {
        const auto text = fields[place].text();
        if (!words_.has(text)) {
          seen[place].add(text, lines_before + records.line(), {options_.decimal, options_.thousands, false});
          seen[place].has_name = seen[place].has_name || text == names_[place];
        } else if (!text.empty()) {
          remedies_.words.insert(std::string(text));
        }
      }
    }
  };
  look_at(*this, 0);
  for (std::size_t k = 0; k < more_.size(); ++k) look_at(*more_[k], static_cast<std::int64_t>(k + 1) * lines_of_file);
  const Notation notation{options_.decimal, options_.thousands, false};
  if (options_.doubts_header && options_.header && looks_like_record(names_, seen, words_, notation)) {
    file_->refuse(c10::str("line ", 1 + options_.skip_lines, " has values such as '", shortened(names_.front()),
                           "' where names belong; set header = false, or header = true if they are names"));
  }
  const bool doubts_points = options_.doubts_points && !has_sure_points(seen, notation);
  std::vector<Unclear> unclear;
  for (auto* column : columns()) {
    const auto& values = seen[place_of(column->name)];
    try {
      choose_type(*column, values, remedies_);
    } catch (const Unclear& odd) {
      unclear.push_back(odd);
    }
    if (doubts_points && values.texts == 0 && values.written.doubts_points(table_.found.separator == ';')) {
      unclear.emplace_back(values.written.group_line, column->name,
                           "is '" + values.written.group + "', which may have decimals or thousands",
                           R"(set decimal = ".", or decimal = "," and thousands = ".")");
      unclear.back().key = R"(decimal = "," and thousands = ".")";
    }
    if (column->type == CsvType::number && options_.fill == CsvFill::zero) column->fill = 0;
    if (column->type == CsvType::date && options_.fill == CsvFill::zero) {
      column->fills.assign(numbers_of(*column).size(), 0);
    }
  }
  if (!unclear.empty()) {  // the first file that has any is refused with its own
    const auto file_of = [](const Unclear& odd) { return odd.line / lines_of_file; };
    const auto first = file_of(*std::ranges::min_element(unclear, {}, file_of));
    std::erase_if(unclear, [&](const Unclear& odd) { return file_of(odd) != first; });
    for (auto& odd : unclear) odd.line %= lines_of_file;
    (first == 0 ? *this : *more_[static_cast<std::size_t>(first - 1)]).refuse_unclear(unclear);
  }
  if (table_.schema.target && table_.schema.target->type == CsvType::date) {
    file_->refuse("column '" + shortened(options_.target) +
                  "' has dates, and is the target; predict a number or a class, or set " +
                  types_key(options_.target, "category"));
  }
  std::vector<std::string> mixed, late;
  std::string name;  // one among whole numbers
  for (const auto* column : columns()) {
    const auto place = place_of(column->name);
    const auto& values = seen[place];
    note_signs(*column, values.written, table_.found.odd);
    if (options_.types.contains(column->name)) continue;
    note_written(*column, values.written, remedies_, table_.found.odd);
    if (column->type != CsvType::category) continue;
    if (is_late[place]) late.push_back(column->name);
    if (is_late[place] || values.numbers == 0 || values.names.empty()) continue;
    mixed.push_back(column->name);
    if (name.empty()) name = *values.names.begin();
  }
  const auto named = [&](const std::vector<std::string>& all, const std::string& what) {
    if (all.empty()) return;
    table_.found.named.insert(table_.found.named.end(), all.begin(), all.end());
    table_.found.odd.push_back((all.size() == 1 ? "column " : "columns ") + shortened(names_of_columns(all)) +
                               (all.size() == 1 ? " has" : " have") + what);
  };
  named(mixed, " names such as '" + shortened(name) +
                   "' among whole numbers, so all are words; if that stands for no value, set " +
                   remedies_.missing_words({name}));
  named(late, c10::str(" no value in the first ", csv_records_to_infer, " records, and words behind them"));
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

}  // namespace vernier
