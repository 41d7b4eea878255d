#include "csv_fit.h"

#include <ATen/ops/isnan.h>
#include <ATen/ops/searchsorted.h>
#include <c10/util/StringUtil.h>
#include <torch/types.h>
#include <vernier/data/csv.h>
#include <vernier/data/data_source.h>
#include <vernier/error.h>

#include <algorithm>
#include <cmath>

#include "csv_values.h"
#include "data/readers/mapped_file.h"

namespace vernier {

namespace {

std::optional<double> number_of(const std::string& word) {
  double value = 0;
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

// The means of the training rows that have a value, of each column; NaN if no row has one.
std::vector<double> means_of(const torch::Tensor& numbers, const torch::Tensor& training) {
  constexpr std::int64_t at_once = 1 << 22;
  const auto columns = numbers.size(1);
  const auto width = std::max<std::int64_t>(1, at_once / std::max<std::int64_t>(1, training.numel()));
  std::vector<double> means;
  for (std::int64_t first = 0; first < columns; first += width) {
    const auto block = numbers.narrow(1, first, std::min(width, columns - first)).index_select(0, training);
    const auto of_block = block.to(torch::kFloat64).nanmean(0).contiguous();
    means.insert(means.end(), of_block.const_data_ptr<double>(), of_block.const_data_ptr<double>() + of_block.numel());
  }
  return means;
}

void fill(torch::Tensor numbers, double value) {
  numbers.masked_fill_(numbers.isnan(), value);
}

// The number of the row before; in the first rows, the next number.
void fill_by_previous(torch::Tensor numbers, const CsvColumn& column, const MappedFile& file) {
  auto filled = numbers.contiguous();
  auto* begin = filled.mutable_data_ptr<double>();
  auto* end = begin + filled.numel();
  const auto* first = std::find_if(begin, end, [](double number) { return !std::isnan(number); });
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

void refuse_left_out(const std::string& name, const std::vector<std::string>& labels) {
  if (std::ranges::none_of(labels, [](const auto& label) { return number_of(label) == -100; })) return;
  refuse("'" + name +
         "' has the label -100, which PyTorch's losses leave out; delete the samples that have it, or give "
         "the class a name");
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

void use_options(CsvColumn& column, const CsvOptions& options, const MappedFile& file) {
  const auto name = "column '" + shortened(column.name) + "'";
  if (std::ranges::find(options.leave_out, column.name) != options.leave_out.end()) {
    file.refuse(name + " is one of `leave_out`, and the trained model needs it");
  }
  using enum CsvType;
  const auto given = options.types.find(column.name);
  if (given != options.types.end()) {
    const bool is_date = given->second != number && given->second != category;
    if ((is_date ? date : given->second) != column.type) {
      file.refuse(name + " has another type in the trained model than `types` says, which cannot be changed");
    }
    auto form = DateForm::parse(column.form);
    if (given->second == day_first) form.order = DateForm::Order::day_first;
    if (given->second == month_first) form.order = DateForm::Order::month_first;
    if (is_date) column.form = form.text();
  }
  const std::vector<double> zeros(column.type == category ? 0 : numbers_of(column).size(), 0.0);
  const auto& fills = options.fill == CsvFill::zero ? zeros : column.means;
  if (column.type == category || fills.empty()) return;
  if (options.fill != CsvFill::zero && options.fill != CsvFill::mean) return;
  column.type == date ? void(column.fills = fills) : void(column.fill = fills[0]);
}

void learn_and_fill(CsvTable& table, const CsvOptions& options, bool has_schema, const MappedFile& file) {
  torch::Tensor training = table.rows;
  if (!has_schema && options.training_rows) training = options.training_rows(table);
  const auto means = has_schema ? std::vector<double>() : means_of(table.numbers, training);
  std::int64_t number = 0, category = 0;
  for (auto& column : table.schema.columns) {
    if (column.type == CsvType::category) {
      auto codes = table.categories.select(1, category++);
      if (!has_schema && options.training_rows) learn_words(column, codes, training);
      continue;
    }
    const auto parts = std::ssize(numbers_of(column));
    const bool is_date = column.type == CsvType::date;
    if (!has_schema && !std::isnan(means[static_cast<std::size_t>(number)])) {
      column.means.assign(means.begin() + number, means.begin() + number + parts);
    }
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
