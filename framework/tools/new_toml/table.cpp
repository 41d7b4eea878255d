#include <c10/util/StringUtil.h>
#include <torch/types.h>
#include <vernier/data/csv.h>
#include <vernier/data/data_source.h>
#include <vernier/error.h>
#include <zlib.h>

#include <algorithm>
#include <cctype>
#include <charconv>
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

bool is_number(std::string text) {
  std::erase_if(text, [](unsigned char c) { return std::isspace(c) || c == '"'; });
  double number = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  return error == std::errc() && end == text.data() + text.size();
}

bool are_numbers(const std::vector<std::string>& fields) {
  return !fields.empty() && std::ranges::all_of(fields, is_number);
}

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

std::string lower_case(std::string text) {
  std::ranges::transform(text, text.begin(), [](unsigned char c) { return std::tolower(c); });
  return text;
}

// Returns the column that is predicted, where its name or its place says so.
std::string choose_target(const std::vector<std::string>& columns, const Form& form, Findings& found) {
  constexpr const char* usual[] = {"target", "label", "class", "species", "y"};
  std::vector<std::string> named;
  for (const auto& column : columns) {
    if (std::ranges::count(usual, lower_case(column)) > 0) named.push_back(column);
  }
  if (named.size() == 1) return named[0];
  if (named.size() > 1) {
    refuse("several columns may be what is predicted: " + some_of(named) + "; name one by --target");
  }
  found.comments.emplace_back("target", form.has_header ? "the last column; another by --target" : "the last column");
  return columns.back();
}

void require_column(const std::string& path, const std::string& target, const std::vector<std::string>& columns) {
  if (std::ranges::count(columns, target) > 0) return;
  refuse("'" + path + "' has no column '" + shortened(target) + "'; name one of " + c10::Join(", ", columns) +
         " by --target");
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
    without.header = without.doubts_header = false;
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

// Names of images in a table that is not a list of images.
void refuse_image_names(const std::string& path, const CsvTable& table) {
  const auto is_image = [](const std::string& word) {
    const auto name = lower_case(word);
    return name.ends_with(".png") || name.ends_with(".jpg") || name.ends_with(".jpeg") || name.ends_with(".webp");
  };
  for (const auto& column : table.schema.columns) {
    if (column.vocabulary.empty() || !std::ranges::all_of(column.vocabulary, is_image)) continue;
    refuse("'" + path + "' has names of images in column '" + shortened(column.name) +
           "'; a list of images has the columns file and label alone: rename or remove others");
  }
}

// Leaves out columns without any value, if no option says which.
void leave_out_empty(const CsvTable& table, const GivenData& given, CsvOptions& options, Findings& found) {
  if (given.task.contains("leave_out") || given.task.contains("columns")) return;
  std::string keys;
  for (const auto& [name, count] : table.found.filled) {
    if (count < table.numbers.size(0) || (name == given.target && !name.empty())) continue;
    options.leave_out.push_back(name);
    keys += (keys.empty() ? "" : ", ") + toml_value(name);
    found.lines.push_back("column '" + printable(name) + "' has no value, and is left out");
  }
  if (!keys.empty()) found.task.emplace_back("leave_out", "[" + keys + "]");
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
  if (columns == std::vector<std::string>{"file", "label"} && given.target.empty()) return look_at_images(path);
  if (given.target.empty()) refuse_image_names(path, table);
  Findings empty;
  leave_out_empty(table, given, options, empty);
  std::erase_if(columns, [&](const auto& name) { return std::ranges::count(options.leave_out, name) > 0; });
  if (columns.empty()) refuse("'" + path + "' has no column with a value");
  options.target = given.target.empty() ? choose_target(columns, form, found) : given.target;
  require_column(path, options.target, columns);
  if (columns.size() < 2) refuse("'" + path + "' has a single column; there is nothing to predict it from");
  options.fill = fill;
  options.columns = inputs;
  if (kind != "auto") {
    options.types[options.target] = kind == "regression" ? CsvType::number : CsvType::category;
  }
  table = read_csv(path, options);
  found.samples = table.rows.numel();
  found.lines.push_back(c10::str(printable(path), ": ", found.samples, " rows, ", described(table.schema)));
  for (const auto& odd : table.found.odd) found.lines.push_back(odd);
  found.lines.insert(found.lines.end(), empty.lines.begin(), empty.lines.end());
  const bool is_classes = describe_target(table, options.target, found);
  if (is_classes && kind == "auto" && std::ranges::all_of(table.schema.target->vocabulary, is_number)) {
    found.lines.push_back("whole numbers are taken for classes; to predict numbers: --set task.kind=regression");
  }
  found.task = {{"use", "\"tabular\""},
                {"kind", is_classes ? "\"classification\"" : "\"regression\""},
                {"data", toml_value(path)},
                {"target", toml_value(options.target)}};
  if (!form.has_header && !given.task.contains("header")) {
    found.task.emplace_back("header", "false");
    found.lines.push_back("there is no line of names, so columns are named by their numbers");
  }
  if (form.skipped > 0) found.task.emplace_back("skip_lines", std::to_string(form.skipped));
  found.task.insert(found.task.end(), empty.task.begin(), empty.task.end());
  if (!given.task.contains("missing") && (!table.found.filled.empty() || table.found.dropped > 0)) {
    found.task.emplace_back("missing", "\"mean\"");
    found.lines.push_back("there are missing values: a number becomes the mean of its column");
  }
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
