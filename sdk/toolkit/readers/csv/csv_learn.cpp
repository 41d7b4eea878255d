#include "csv_learn.h"

#include <ATen/ops/isnan.h>
#include <ATen/ops/searchsorted.h>
#include <c10/util/StringUtil.h>
#include <torch/types.h>
#include <vernier/csv.h>
#include <vernier/data_source.h>
#include <vernier/error.h>

#include <algorithm>
#include <cmath>

#include "csv_values.h"
#include "readers/mapped_file.h"

namespace vernier {

namespace {

std::optional<float> number_of(const std::string& word) {
  float value = 0;
  if (!parse_number(word, {}, value)) return {};
  return value;
}

// Words that no training row has become unknown: the code behind the last word.
void learn_words(CsvColumn& column, torch::Tensor codes, const torch::Tensor& training) {
  std::vector<bool> is_used(column.vocabulary.size());
  const auto used = codes.index_select(0, training).contiguous();
  for (std::int64_t i = 0; i < used.numel(); ++i) {
    is_used[static_cast<std::size_t>(used.const_data_ptr<std::int64_t>()[i])] = true;
  }
  std::vector<std::string> words;
  std::vector<std::int64_t> code_of(column.vocabulary.size());
  for (std::size_t i = 0; i < is_used.size(); ++i) {
    code_of[i] = std::ssize(words);
    if (is_used[i]) words.push_back(column.vocabulary[i]);
  }
  for (std::size_t i = 0; i < is_used.size(); ++i) {
    if (!is_used[i]) code_of[i] = std::ssize(words);
  }
  if (words.size() == column.vocabulary.size()) return;
  codes.copy_(torch::tensor(code_of, torch::kInt64).index_select(0, codes));
  column.vocabulary = words;
}

// The means of the training rows that have a value, of the parts of a column; none if no row has one.
std::vector<float> means_of(const torch::Tensor& numbers, const torch::Tensor& training) {
  std::vector<float> means;
  const auto rows = numbers.index_select(0, training).to(torch::kFloat64);
  for (std::int64_t part = 0; part < rows.size(1); ++part) {
    const auto values = rows.select(1, part);
    const auto there = values.masked_select(values.isnan().logical_not());
    if (there.numel() == 0) return {};
    means.push_back(static_cast<float>(there.mean().item<double>()));
  }
  return means;
}

void fill(torch::Tensor numbers, float value) {
  numbers.masked_fill_(numbers.isnan(), value);
}

// The number of the row before; in the first rows, the next number.
void fill_by_previous(torch::Tensor numbers, const CsvColumn& column, const MappedFile& file) {
  auto filled = numbers.contiguous();
  auto* begin = filled.mutable_data_ptr<float>();
  auto* end = begin + filled.numel();
  const auto* first = std::find_if(begin, end, [](float number) { return !std::isnan(number); });
  if (first == end && begin != end) file.refuse("column '" + shortened(column.name) + "' has no value");
  for (auto* number = begin; number != end; ++number) {
    if (std::isnan(*number)) *number = number < first ? *first : number[-1];
  }
  numbers.copy_(filled);
}

}  // namespace

bool all_numbers(const std::vector<std::string>& words) {
  return std::ranges::all_of(words, [](const auto& word) { return number_of(word).has_value(); });
}

void sort_words(std::vector<std::string>& words) {
  std::ranges::sort(words);
  if (!all_numbers(words)) return;
  std::ranges::stable_sort(words, {}, [](const auto& word) { return *number_of(word); });
}

void make_classes(CsvTable& table) {
  auto& target = table.schema.target;
  if (!target || target->type != CsvType::number) return;
  const auto is_missing = table.target.isnan();
  const auto different = class_numbers(table.target.masked_select(is_missing.logical_not()));
  if (!different.defined()) return;
  for (std::int64_t code = 0; code < different.numel(); ++code) {
    target->vocabulary.push_back(c10::str(different[code].item<std::int64_t>()));
  }
  table.target = at::searchsorted(different, table.target).masked_fill(is_missing, -1);
  target->type = CsvType::category;
}

void drop_rows(CsvTable& table, const CsvOptions& options) {
  const auto rows = table.numbers.size(0);
  auto keeps = torch::ones({rows}, torch::kBool);
  std::int64_t category = 0;
  if (options.fill == CsvFill::drop && table.target.defined()) {
    keeps.logical_and_(table.numbers.isnan().any(1).logical_not());
    for (const auto& column : table.schema.columns) {
      if (column.type != CsvType::category) continue;
      const auto codes = table.categories.select(1, category++);
      const auto blank = std::ranges::find(column.vocabulary, "");
      if (blank != column.vocabulary.end()) keeps.logical_and_(codes != (blank - column.vocabulary.begin()));
    }
  }
  if (table.target.defined()) {
    keeps.logical_and_(table.target.is_floating_point() ? table.target.isnan().logical_not() : table.target >= 0);
  }
  table.rows = keeps.nonzero().select(1, 0).contiguous();
  table.found.dropped = rows - table.rows.numel();
}

void learn_and_fill(CsvTable& table, const CsvOptions& options, bool has_schema, const MappedFile& file) {
  torch::Tensor training = table.rows;
  if (!has_schema && options.training_rows) training = options.training_rows(table);
  std::int64_t number = 0, category = 0;
  for (auto& column : table.schema.columns) {
    if (column.type == CsvType::category) {
      auto codes = table.categories.select(1, category++);
      if (!has_schema && options.training_rows) learn_words(column, codes, training);
      continue;
    }
    const auto parts = std::ssize(numbers_of(column));
    const bool is_date = column.type == CsvType::date;
    if (!has_schema) column.means = means_of(table.numbers.narrow(1, number, parts), training);
    if (!has_schema && options.fill == CsvFill::mean) {
      if (column.means.empty()) {
        file.refuse("column '" + shortened(column.name) +
                    "' has no value, and so no mean to fill in; set leave_out = [\"" + shortened(column.name) + "\"]");
      }
      is_date ? void(column.fills = column.means) : void(column.fill = column.means[0]);
    }
    for (std::int64_t part = 0; part < parts; ++part) {
      const auto values = table.numbers.select(1, number++);
      if (is_date && !column.fills.empty()) fill(values, column.fills.at(static_cast<std::size_t>(part)));
      if (!is_date && column.fill) fill(values, *column.fill);
      if (options.fill == CsvFill::previous) fill_by_previous(values, column, file);
    }
  }
}

}  // namespace vernier
