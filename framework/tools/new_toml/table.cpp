#include <c10/util/StringUtil.h>
#include <torch/types.h>
#include <vernier/data/csv.h>
#include <vernier/data/data_source.h>
#include <vernier/error.h>
#include <zlib.h>

#include <algorithm>
#include <memory>
#include <sstream>
#include <utility>

#include "findings.h"

namespace vernier {

namespace {

// The fields of the first two lines, packed by gzip or not, cut at any separator.
std::vector<std::vector<std::string>> first_lines(const std::string& path) {
  const std::unique_ptr<gzFile_s, int (*)(gzFile)> file(gzopen(path.c_str(), "rb"), gzclose);
  std::vector<std::vector<std::string>> lines;
  std::string bytes(1 << 16, '\0');
  const int count = file ? gzread(file.get(), bytes.data(), static_cast<unsigned>(bytes.size())) : 0;
  bytes.resize(static_cast<std::size_t>(std::max(0, count)));
  std::istringstream in(bytes);
  for (std::string line; lines.size() < 2 && std::getline(in, line);) {
    auto& fields = lines.emplace_back();
    const bool has_signs = line.find_first_of(",;\t|") != std::string::npos;
    for (std::size_t at = 0; at < line.size();) {
      const auto end = std::min(line.size(), line.find_first_of(has_signs ? ",;\t|\r" : " \r", at));
      if (end > at || has_signs) fields.push_back(line.substr(at, end - at));
      at = end + 1;
    }
  }
  return lines;
}

bool are_numbers(const std::vector<std::string>& fields) {
  return !fields.empty() && std::ranges::all_of(fields, is_number);
}

// A network of this size needs so many epochs, and between so many updates. Batches grow with the table until the
// updates suffice for the epochs. Most tables need fewer, and early stopping ends their runs; a table of 13,705 rows
// whose r2 is 0.75 after these epochs has 0.63 after a third of them.
constexpr std::int64_t epochs = 180, fewest_updates = 6000, most_updates = 24'000, least_batch = 32,
                       largest_batch = 256;

struct Form {
  bool has_header = true;
  std::int64_t skipped = 0;
};

// scikit-learn's own files begin with the numbers of rows and inputs and the names of the classes.
Form form_of(const std::string& path) {
  const auto lines = first_lines(path);
  if (lines.size() < 2) return {};
  const auto &first = lines[0], &second = lines[1];
  if (are_numbers(first)) return {.has_header = false};
  const bool counts = first.size() > 2 && is_number(first[0]) && first[1] == std::to_string(second.size() - 1);
  if (counts && are_numbers(second)) return {.has_header = false, .skipped = 1};
  return {};
}

// Returns the column that is predicted, where its name or its place says so.
std::string choose_target(const std::vector<std::string>& columns, const Form& form, Findings& found) {
  constexpr const char* usual[] = {"target", "label", "class", "species", "y"};
  std::vector<std::string> named;
  for (const auto& column : columns) {
    if (std::ranges::count(usual, small_letters(column)) > 0) named.push_back(column);
  }
  if (named.size() == 1) return named[0];
  if (named.size() > 1) {
    refuse("several columns may be what is predicted: " + names_of_columns(named) + "; name one by --target");
  }
  found.comments.emplace_back("target", form.has_header ? "the last column; another by --target" : "the last column");
  return columns.back();
}

// Adds a line about the target. Returns true for classes.
bool describe_target(const CsvTable& table, const std::string& target, Findings& found) {
  const auto& words = table.schema.target->vocabulary;
  const auto values = table.target.index_select(0, table.rows);
  const bool is_last = std::ranges::any_of(found.comments, [](const auto& each) { return each.first == "target"; });
  const auto start = "target " + printable(target) + (is_last ? ", the last column: " : ": ");
  const auto classes = std::ssize(words), rows = values.numel();
  if (classes > std::max<std::int64_t>(2, rows / 2)) {
    refuse(c10::str("the column '", shortened(target), "' has ", classes, " different words in ", rows,
                    " rows, so it is not a target; name another by --target"));
  }
  if (classes == rows && rows > 0) {
    refuse("the column '" + shortened(target) + "' has a single row of each class, so none can be held out");
  }
  if (rows == 0 || values.min().equal(values.max())) {
    refuse("the column '" + shortened(target) + "' has a single value; name another by --target");
  }
  if (classes > 0) {
    found.lines.push_back(start + counted({classes, words}, values));
  } else {
    found.lines.push_back(c10::str(start, "numbers from ", values.min().item<float>(), " to ",
                                   values.max().item<float>(), ", mean ", values.mean().item<float>()));
  }
  return classes > 0;
}

// Says what whole numbers were taken for, and how to take them for the other.
void describe_guess(const CsvTable& table, Findings& found) {
  const auto& words = table.schema.target->vocabulary;
  if (words.empty() && are_few_whole(table.target.index_select(0, table.rows))) {
    found.lines.push_back(
        "whole numbers that look like counts are taken for numbers; to predict classes: --set "
        "task.kind=classification");
  } else if (!words.empty() && std::ranges::all_of(words, is_number)) {
    found.lines.push_back("whole numbers are taken for classes; to predict numbers: --set task.kind=regression");
  }
}

std::string described(const CsvSchema& schema) {
  std::int64_t numbers = 0, categories = 0, others = 0;
  for (const auto& column : schema.columns) {
    ++(column.type == CsvType::number ? numbers : column.type == CsvType::category ? categories : others);
  }
  std::string text;
  const auto add = [&](std::int64_t count, const char* what) {
    if (count > 0) text += c10::str(text.empty() ? "" : ", ", count, count == 1 ? " column of " : " columns of ", what);
  };
  add(numbers, "numbers");
  add(categories, "words");
  add(others, "dates");
  return text;
}

// Reads a table and counts its missing values. A first line that is data is found by reading it so.
CsvTable read_any(const std::string& path, CsvOptions& options, Form& form) {
  options.fill = CsvFill::zero;
  try {
    return read_csv(path, options);
  } catch (const Error&) {
    if (!options.doubts_header) throw;
    auto without = options;
    without.header = without.doubts_header = without.names = false;
    try {
      auto table = read_csv(path, without);
      form.has_header = false;
      options = without;
      return table;
    } catch (const Error&) {  // the first error is the better one
    }
    throw;
  }
}

// Columns that are left out, if no option says which.
struct LeftOut {
  std::vector<std::string> rows, empty;  // rows: they count or name the rows; empty: they have no value
  bool has_words = false;                // names among them

  bool has(const std::string& column) const {
    return std::ranges::count(rows, column) > 0 || std::ranges::count(empty, column) > 0;
  }
  std::vector<std::string> all() const {
    auto both = rows;
    both.insert(both.end(), empty.begin(), empty.end());
    return both;
  }
  void describe(Findings& found) const {
    std::string keys;
    for (const auto& name : all()) keys += (keys.empty() ? "" : ", ") + toml_value(name);
    if (keys.empty()) return;
    found.task.emplace_back("leave_out", "[" + keys + "]");
    for (const auto& name : empty) {
      found.lines.push_back("column '" + printable(name) + "' has no value, and is left out");
    }
    if (rows.empty()) return;
    const bool is_one = rows.size() == 1;
    const std::string reason = has_words ? is_one ? " names nearly each row" : " count or name the rows"
                               : is_one  ? " counts the rows"
                                         : " count the rows";
    std::string which;
    for (const auto& name : rows) which += (which.empty() ? "'" : ", '") + printable(name) + "'";
    which = (is_one ? "column " : "columns ") + which + reason;
    found.comments.emplace_back("leave_out", which);
    found.lines.push_back(which +
                          (is_one ? ", and is left out; to learn from it" : ", and are left out; to learn from them") +
                          ": --set 'task.leave_out=[]'");
  }
};

// The values of an input as codes, int64 [rows], and as numbers where it has some.
struct Values {
  std::string name;
  CsvName meaning;
  bool is_date;
  torch::Tensor codes, numbers;
  std::int64_t different;
};

std::vector<Values> values_of(const CsvTable& table) {
  std::vector<Values> all;
  std::int64_t number = 0, category = 0;
  for (const auto& column : table.schema.columns) {
    Values values{column.name, meaning_of(column.name), column.type == CsvType::date, {}, {}, 0};
    if (column.type == CsvType::category) {
      values.codes = table.categories.select(1, category++).index_select(0, table.rows);
    } else {
      values.numbers = table.numbers.select(1, number).index_select(0, table.rows);
      number += std::ssize(numbers_of(column));
      values.codes = std::get<1>(at::_unique(values.numbers, /*sorted=*/true, /*return_inverse=*/true));
    }
    values.different = values.codes.max().item<std::int64_t>() + 1;
    all.push_back(std::move(values));
  }
  return all;
}

bool is_time(const Values& values) {
  return values.is_date || (values.numbers.defined() && values.meaning == CsvName::time);
}

// Returns true for a column that orders the rows of a person or a firm, whatever it orders elsewhere.
bool may_be_time(const Values& values) {
  const auto name = small_letters(values.name);
  return is_time(values) || name == "age" || name == "t" || name == "step" || name == "epoch";
}

// Returns the pairs of equal values in `values`.
double equal_pairs(const Values& values, std::int64_t rows) {
  const auto counts = at::bincount(values.codes).to(torch::kFloat64);
  return (counts.square().sum().item<double>() - static_cast<double>(rows)) / 2;
}

// Returns how many pairs of rows would have equal values in both columns if the columns had nothing to do with each
// other.
double chance_pairs(const Values& a, const Values& b, std::int64_t rows) {
  const auto n = static_cast<double>(rows);
  return rows < 2 ? 0.0 : equal_pairs(a, rows) * equal_pairs(b, rows) / (n * (n - 1) / 2);
}

// Returns the column whose groups must stay together: one that stands for a person, a firm or the like and is there
// several times, or with a time beside it that makes each row another one. "": there is none.
std::string group_of(const std::vector<Values>& columns, std::int64_t rows) {
  constexpr std::int64_t fewest = 5;
  constexpr double chance = 10;  // so many pairs are not missing by chance
  std::string group;
  std::int64_t most = 0;
  for (const auto& column : columns) {
    const bool is_whole = !column.numbers.defined() || column.numbers.equal(column.numbers.trunc());
    const bool is_unit = column.meaning == CsvName::row;
    const bool is_repeated = is_unit ? column.different * 10 <= rows * 9 : column.different * 2 <= rows;
    if (!is_whole || column.is_date || column.different < fewest || !is_repeated) continue;
    const bool is_panel = std::ranges::any_of(columns, [&](const Values& time) {
      if (!may_be_time(time) || time.name == column.name || chance_pairs(column, time, rows) < chance) return false;
      return std::get<0>(at::_unique(column.codes * time.different + time.codes)).numel() == rows;
    });
    if (may_be_time(column) || (!is_panel && !is_unit)) continue;
    const auto weight = column.different + (is_unit ? rows : 0);
    if (weight > most) most = weight, group = column.name;
  }
  return group;
}

// Returns the column of a time that goes up from row to row, "" if there is none.
std::string series_of(const std::vector<Values>& columns, std::int64_t rows) {
  constexpr std::int64_t fewest = 20;
  for (const auto& column : columns) {
    if (!is_time(column) || column.different != rows || rows < fewest) continue;
    const auto& codes = column.codes;
    if (codes.narrow(0, 1, rows - 1).gt(codes.narrow(0, 0, rows - 1)).all().item<bool>()) return column.name;
  }
  return "";
}

// Decides which rows are held out.
void choose_split(const CsvTable& table, CsvOptions& options, Findings& found) {
  const auto rows = table.rows.numel();
  if (rows == 0) return;
  const auto columns = values_of(table);
  const auto group = group_of(columns, rows), series = series_of(columns, rows);
  if (!group.empty() && columns.size() > 1) {
    found.task.emplace_back("split", toml_value("group:" + group));
    found.lines.push_back("column '" + printable(group) +
                          "' has several rows of each value, so whole groups are held out, and it is not an input; "
                          "otherwise: --set task.split=random");
    options.group = group;
  } else if (!series.empty()) {
    found.lines.push_back("the rows are a series in the order of '" + printable(series) +
                          "'; to forecast it from the rows before: [task] use = \"sequence\", kind = \"forecast\"");
    if (!table.target.is_floating_point()) return;
    found.task.emplace_back("split", "\"last\"");
    found.lines.push_back("the last rows are held out; otherwise: --set task.split=random");
  }
}

// The options of task/tabular by which the data are read.
struct Reading {
  CsvOptions csv;
  std::string kind;
};

Reading reading_of(const GivenData& given) {
  Options options("task/tabular", given.task, "--set task");
  Reading reading{csv_options(options, {"refuse", "mean", "zero", "drop"}), ""};
  const std::vector<std::string> none;
  reading.csv.columns = options.get("columns", none, "");
  reading.csv.leave_out = options.get("leave_out", none, "");
  reading.kind = options.choose("kind", "auto", {"auto", "classification", "regression"}, "");
  reading.csv.classes = reading.kind == "auto";
  reading.csv.names = true;
  return reading;
}

Findings look(const std::string& path, const GivenData& given) {
  Findings found;
  auto reading = reading_of(given);
  auto& options = reading.csv;
  const auto& kind = reading.kind;
  const auto inputs = std::exchange(options.columns, {});  // the target is found among all
  const bool has_form = given.task.contains("header") || given.task.contains("skip_lines");
  auto form = has_form ? Form{options.header, 0} : form_of(path);
  if (!has_form) {
    options.header = form.has_header;
    options.skip_lines = form.skipped;
  }
  const auto fill = given.task.contains("missing") ? options.fill : CsvFill::mean;
  auto table = read_any(path, options, form);
  std::vector<std::string> columns;
  for (const auto& column : table.schema.columns) columns.push_back(column.name);
  const bool chooses = !given.task.contains("leave_out") && !given.task.contains("columns");
  LeftOut left_out;
  const auto is_target = [&](const std::string& name) { return name == given.target && !name.empty(); };
  if (chooses) left_out.rows = table.found.row_names;
  std::erase_if(left_out.rows, is_target);
  left_out.has_words = std::ranges::any_of(table.schema.columns, [&](const auto& column) {
    return column.type == CsvType::category && std::ranges::count(left_out.rows, column.name) > 0;
  });
  for (const auto& [name, count] : table.found.filled) {
    if (chooses && count == table.numbers.size(0) && !is_target(name)) left_out.empty.push_back(name);
  }
  if (columns.size() < 2) refuse("'" + path + "' has a single column; there is nothing to predict it from");
  auto inputs_left = columns.size() - left_out.all().size() - (given.target.empty() ? 1 : 0);
  if (!given.target.empty() && std::ranges::count(columns, given.target) > 0) --inputs_left;
  if (static_cast<std::int64_t>(inputs_left) <= 0) left_out.rows.clear();  // a last input is better than none
  std::erase_if(columns, [&](const auto& name) { return left_out.has(name); });
  if (columns.empty()) refuse("'" + path + "' has no column with a value");
  options.target = given.target.empty() ? choose_target(columns, form, found) : given.target;
  options.fill = given.task.contains("missing") ? fill : CsvFill::zero;
  options.columns = inputs;
  if (kind != "auto") {
    options.types[options.target] = kind == "regression" ? CsvType::number : CsvType::category;
  }
  const auto own = options.leave_out;
  const auto read = [&] {
    options.leave_out = own;
    for (const auto& name : left_out.all()) options.leave_out.push_back(name);
    return read_csv(path, options);
  };
  table = read();
  // Rows without a target are not used, and others may have no value in some columns.
  if (chooses) {
    for (const auto& column : table.schema.columns) {
      if (column.type != CsvType::category && column.means.empty()) left_out.empty.push_back(column.name);
    }
  }
  Findings split;
  if (!given.task.contains("split") && !given.task.contains("validation") && !given.task.contains("validation_share")) {
    choose_split(table, options, split);
  }
  options.fill = fill;
  table = read();
  found.samples = table.rows.numel();
  found.lines.push_back(c10::str(printable(path), ": ", found.samples, " rows, ", described(table.schema)));
  for (const auto& odd : table.found.odd) found.lines.push_back(odd);
  Findings left;
  left_out.describe(left);
  found.lines.insert(found.lines.end(), left.lines.begin(), left.lines.end());
  const bool is_classes = describe_target(table, options.target, found);
  if (kind == "auto" && !options.types.contains(options.target)) describe_guess(table, found);
  found.lines.insert(found.lines.end(), split.lines.begin(), split.lines.end());
  found.task = {{"use", "\"tabular\""},
                {"kind", is_classes ? "\"classification\"" : "\"regression\""},
                {"data", toml_value(path)},
                {"target", toml_value(options.target)}};
  if (!form.has_header && !given.task.contains("header")) {
    found.task.emplace_back("header", "false");
    found.lines.push_back("there is no line of names, so columns are named by their numbers");
  }
  if (form.skipped > 0) found.task.emplace_back("skip_lines", std::to_string(form.skipped));
  found.task.insert(found.task.end(), left.task.begin(), left.task.end());
  found.comments.insert(found.comments.end(), left.comments.begin(), left.comments.end());
  found.task.insert(found.task.end(), split.task.begin(), split.task.end());
  std::string types;
  for (const auto& column : table.schema.columns) {
    if (std::ranges::count(table.found.named, column.name) == 0) continue;
    types += (types.empty() ? "{" : ", ") + toml_key(column.name) + " = \"category\"";
  }
  if (!types.empty()) found.task.emplace_back("types", types + "}");
  if (!given.task.contains("missing") && (!table.found.filled.empty() || table.found.dropped > 0)) {
    found.task.emplace_back("missing", "\"mean\"");
    found.lines.push_back("there are missing values: a number becomes the mean of its column");
  }
  constexpr std::int64_t few = 500;
  if (found.samples < few && !given.task.contains("dropout")) found.task.emplace_back("dropout", "0.2");
  auto batch = least_batch;
  while (found.samples * epochs / batch > most_updates && batch < largest_batch) batch *= 2;
  if (batch > least_batch) found.batch = batch;
  found.updates = std::clamp<std::int64_t>(found.samples * epochs / batch, fewest_updates, most_updates);
  found.most_epochs = 900;
  found.validations = 120;
  found.patience = 20;
  return found;
}

}  // namespace

Findings look_at_table(const std::string& path, const GivenData& given) {
  try {
    return look(path, given);
  } catch (const Error& error) {
    const std::string text = error.what();
    const bool has_key = text.find(" = ") != std::string::npos;
    refuse(text + (has_key ? "; here keys are given by --set, as in --set 'task.decimal=\",\"'" : ""));
  }
}

}  // namespace vernier
