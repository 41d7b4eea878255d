#include "onnx.h"

#include <ATen/ops/cat.h>
#include <ATen/ops/floor.h>
#include <ATen/ops/full.h>
#include <ATen/ops/tensor.h>
#include <ATen/ops/where.h>

#include <algorithm>
#include <limits>

namespace tabular {

namespace {

using torch::Tensor;
using vernier::CsvColumn;
using vernier::CsvFill;
using vernier::CsvType;

// The numbers in place of a missing value, one for each of numbers_of(); none if there is nothing to fill in.
std::vector<double> fills_of(const CsvColumn& column, CsvFill fill) {
  if (fill == CsvFill::zero) return std::vector<double>(vernier::numbers_of(column).size(), 0.0);
  if (fill == CsvFill::mean && !column.means.empty()) return column.means;
  return column.fill ? std::vector<double>{*column.fill} : column.fills;
}

Tensor filled(const Tensor& numbers, const std::vector<double>& fills) {
  if (fills.empty()) return numbers;
  return at::where(numbers.ne(numbers), at::tensor(fills, numbers.options()), numbers);
}

// The numbers of a date, of days since 1970-01-01: Hinnant, "chrono-Compatible Low-Level Date Algorithms", computes
// the calendar with years that begin in March.
Tensor calendar(const Tensor& days, std::int64_t parts) {
  const auto quotient = [](const Tensor& x, double by) { return at::floor(x / by); };
  const auto whole = at::floor(days + 1e-9), shifted = whole + 719468;
  const auto era = quotient(shifted, 146097), day_of_era = shifted - era * 146097;
  const auto year_of_era = quotient(
      day_of_era - quotient(day_of_era, 1460) + quotient(day_of_era, 36524) - quotient(day_of_era, 146096), 365);
  const auto from_march = day_of_era - (year_of_era * 365 + quotient(year_of_era, 4) - quotient(year_of_era, 100));
  const auto month_from_march = quotient(from_march * 5 + 2, 153);
  const auto day = from_march - quotient(month_from_march * 153 + 2, 5) + 1;
  const auto is_after = month_from_march.ge(10).to(days.scalar_type());  // January and February
  const auto month = month_from_march + 3 - is_after * 12;
  const auto year = year_of_era + era * 400 + is_after;
  const auto past = year - 1;  // whole years since the year 0
  const auto new_year = past * 365 + quotient(past, 4) - quotient(past, 100) + quotient(past, 400) - 719162;
  const auto from_monday = whole + 3 - quotient(whole + 3, 7) * 7;
  std::vector<Tensor> numbers = {days, year, month, day, from_monday, whole - new_year + 1};
  if (parts > std::ssize(numbers)) numbers.push_back(((days - whole) * 24).clamp_min(0));
  return at::cat(numbers, 1);
}

vernier::TextCodes codes_of(const CsvColumn& column, const std::vector<std::string>& missing) {
  vernier::TextCodes texts{{}, std::ssize(column.vocabulary)};
  for (std::size_t i = 0; i < column.vocabulary.size(); ++i) {
    texts.codes[column.vocabulary[i]] = static_cast<std::int64_t>(i);
  }
  const auto none = texts.codes.find("");
  if (none == texts.codes.end()) return texts;
  const auto code = none->second;
  for (const auto& word : missing) texts.codes[word] = code;
  return texts;
}

// Five rows to trace with, of which one has no value.
Tensor example_of(const CsvColumn& column) {
  if (column.type == CsvType::category) return at::full({5, 1}, std::ssize(column.vocabulary), torch::kInt64);
  const double first = column.means.empty() ? 0 : column.means[0];
  return at::tensor({first, first + 100.25, std::numeric_limits<double>::quiet_NaN(), first - 40000, first + 1},
                    torch::kFloat64)
      .unsqueeze(1);
}

std::vector<std::string> names_of(const std::vector<CsvColumn>& columns) {
  std::vector<std::string> names;
  for (const auto& column : columns) names.push_back(column.name.empty() ? "column" : column.name);
  return names;
}

}  // namespace

vernier::ExportedModel onnx_model(Network& network, const Facts& facts, CsvFill fill) {
  vernier::ExportedModel model{network, {}, {}, {}, facts.json()};
  model.classes = facts.classes;
  if (facts.is_array) {
    model.examples = {at::zeros({2, facts.numbers}, torch::kFloat64)};
    model.forward = [&network](const auto& inputs) { return network.forward(inputs[0], {}); };
    return model;
  }
  const auto& columns = facts.schema.columns;
  model.inputs = names_of(columns);
  for (std::size_t i = 0; i < columns.size(); ++i) {
    model.examples.push_back(example_of(columns[i]));
    if (columns[i].type == CsvType::category) model.texts[model.inputs[i]] = codes_of(columns[i], facts.missing);
  }
  model.forward = [&network, columns, fill](const auto& inputs) {
    std::vector<Tensor> numbers, codes;
    for (std::size_t i = 0; i < columns.size(); ++i) {
      const auto parts = std::ssize(vernier::numbers_of(columns[i]));
      if (columns[i].type == CsvType::category) {
        codes.push_back(inputs[i]);
      } else {
        numbers.push_back(filled(columns[i].type == CsvType::date ? calendar(inputs[i], parts) : inputs[i],
                                 fills_of(columns[i], fill)));
      }
    }
    return network.forward(numbers.empty() ? Tensor() : at::cat(numbers, 1),
                           codes.empty() ? Tensor() : at::cat(codes, 1));
  };
  return model;
}

}  // namespace tabular
