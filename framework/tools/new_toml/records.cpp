#include "records.h"

#include <ATen/ops/tensor.h>
#include <torch/types.h>
#include <vernier/data/csv.h>
#include <vernier/error.h>
#include <vernier/json_in.h>
#include <zlib.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <sstream>

namespace vernier {

namespace {

using Json = nlohmann::ordered_json;

std::int64_t words_in(const std::string& text) {
  std::istringstream in(text);
  return std::distance(std::istream_iterator<std::string>(in), std::istream_iterator<std::string>());
}

std::string unpacked(const std::string& path) {
  const std::unique_ptr<gzFile_s, int (*)(gzFile)> file(gzopen(path.c_str(), "rb"), gzclose);
  std::string all, part(1 << 20, '\0');
  for (int count = 0; file && (count = gzread(file.get(), part.data(), static_cast<unsigned>(part.size()))) > 0;) {
    all.append(part, 0, static_cast<std::size_t>(count));
  }
  return all;
}

std::vector<Json> objects_in(const std::string& path) {
  const auto text = unpacked(path);
  std::vector<Json> objects;
  const auto add = [&](const Json& value, std::int64_t line) {
    if (!value.is_object()) {
      refuse(c10::str("'", path, "' line ", line, " is not a JSON object, as {\"text\": \"…\", \"label\": \"…\"} is"));
    }
    objects.push_back(value);
  };
  if (ending_of(path) == ".json") {
    const auto all = json_in<Json>(text);
    if (!all.is_array()) refuse("'" + path + "' is not an array of JSON objects");
    for (const auto& value : all) add(value, std::ssize(objects) + 1);
  } else {
    std::istringstream in(text);
    std::int64_t number = 1;
    for (std::string line; std::getline(in, line); ++number) {
      if (line.find_first_not_of(" \t\r") != std::string::npos) {
        add(json_in<Json>(line), number);
      }
    }
  }
  if (objects.empty()) refuse("'" + path + "' is empty");
  return objects;
}

Field field_of(const std::string& name, const std::vector<Json>& objects) {
  Field field{.name = name};
  const auto at = [&](const Json& object) {
    const auto found = object.find(name);
    return found == object.end() ? Json() : *found;
  };
  std::map<std::string, std::int64_t> codes;
  std::vector<double> numbers;
  std::vector<std::string> words;
  for (const auto& object : objects) {
    const auto value = at(object);
    if (value.is_null() && !std::exchange(field.has_gaps, true)) field.gap = std::ssize(numbers) + 1;
    if (value.is_structured()) field.type = Field::Type::others;
    if (field.type == Field::Type::numbers && (value.is_string() || value.is_boolean()))
      field.type = Field::Type::words;
    numbers.push_back(value.is_number() ? value.get<double>() : std::numeric_limits<double>::quiet_NaN());
    words.push_back(value.is_string() ? value.get<std::string>() : value.is_null() ? "" : value.dump());
  }
  field.values = at::tensor(numbers, torch::kFloat64);
  if (!field.has_words()) return field;
  for (const auto& word : words) codes.emplace(word, 0);
  for (auto& [word, code] : codes) {
    code = std::ssize(field.words);
    field.words.push_back(word);
  }
  std::vector<std::int64_t> coded;
  for (const auto& word : words) coded.push_back(codes.at(word));
  field.values = at::tensor(coded, torch::kInt64);
  return field;
}

}  // namespace

double Field::words_of_a_value() const {
  std::int64_t sum = 0;
  for (const auto& word : words) sum += words_in(word);
  return words.empty() ? 0 : static_cast<double>(sum) / static_cast<double>(words.size());
}

bool Field::rises() const {
  return values.size(0) > 1 && (values.slice(0, 1) > values.slice(0, 0, -1)).all().item<bool>();
}

std::optional<double> Field::even_step() const {
  if (has_words() || !rises()) return std::nullopt;
  const auto steps = values.diff();
  const double step = steps.mean().item<double>();  // exact only up to rounding
  constexpr double rounding = 0.01;                 // 1949.083 and 1949.167 are months
  if ((steps - step).abs().max().item<double>() > rounding * step) return std::nullopt;
  return step;
}

const Field* Records::find(const std::string& name) const {
  const auto found = std::ranges::find(fields, name, &Field::name);
  return found == fields.end() ? nullptr : &*found;
}

std::optional<Records> records_of_csv(const std::string& path, const GivenData& given) {
  Options options("task", given.task, "--set task");
  auto csv = csv_options(options, {"refuse", "mean", "zero", "drop", "previous"});
  csv.fill = CsvFill::zero;
  csv.names = true;
  Records records{.path = path, .has_header = csv.header};
  std::optional<CsvTable> table;
  try {
    table = read_csv(path, csv);
    const auto& columns = table->schema.columns;
    if (csv.doubts_header && std::ranges::all_of(columns, is_number, &CsvColumn::name)) {
      csv.header = records.has_header = false;
      table = read_csv(path, csv);
    }
  } catch (const Error&) {
    return std::nullopt;
  }
  records.rows = table->rows.numel();
  std::int64_t number = 0, category = 0;
  for (const auto& column : table->schema.columns) {
    Field field{.name = column.name, .words = column.vocabulary};
    field.has_gaps =
        std::ranges::count(table->found.filled, column.name, &std::pair<std::string, std::int64_t>::first) > 0;
    const bool has_words = column.type == CsvType::category;
    field.type = has_words                        ? Field::Type::words
                 : column.type == CsvType::number ? Field::Type::numbers
                                                  : Field::Type::dates;
    field.values = has_words ? table->categories.select(1, category++) : table->numbers.select(1, number);
    if (!has_words) number += std::ssize(numbers_of(column));
    records.fields.push_back(std::move(field));
  }
  return records;
}

Records records_of_lines(const std::string& path) {
  const auto objects = objects_in(path);
  Records records{.path = path, .rows = std::ssize(objects), .is_csv = false};
  std::vector<std::string> names;
  for (const auto& object : objects) {
    for (const auto& [name, value] : object.items()) {
      if (std::ranges::count(names, name) == 0) names.push_back(name);
    }
  }
  for (const auto& name : names) records.fields.push_back(field_of(name, objects));
  return records;
}

}  // namespace vernier
