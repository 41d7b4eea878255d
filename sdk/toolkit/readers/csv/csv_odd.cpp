#include "csv_odd.h"

#include <c10/util/StringUtil.h>
#include <torch/types.h>
#include <vernier/csv.h>
#include <vernier/error.h>

#include <algorithm>

#include "csv_look.h"

namespace vernier {

namespace {

constexpr std::int64_t few_rows = 10;

std::string leave_out_key(const std::string& name) {
  return "leave_out = [\"" + shortened(name) + "\"]";
}

bool counts_rows(const torch::Tensor& numbers) {
  const auto rows = numbers.numel();
  if (rows < few_rows) return false;
  return (numbers.narrow(0, 1, rows - 1) - numbers.narrow(0, 0, rows - 1)).eq(1).all().item<bool>();
}

}  // namespace

void note_odd_columns(const CsvTable& table, std::vector<std::string>& odd) {
  const auto rows = table.numbers.size(0);
  std::int64_t number = 0, category = 0;
  for (const auto& column : table.schema.columns) {
    const auto name = "column '" + shortened(column.name) + "'";
    const auto remedy = "; to leave it out: " + leave_out_key(column.name);
    if (column.type == CsvType::category) {
      const auto words = std::ssize(column.vocabulary);
      ++category;
      if (words == 1 && rows > 1) {
        odd.push_back(name + " is always '" + shortened(column.vocabulary[0]) + "'" + remedy);
      } else if (words > few_rows && words * 2 > rows) {
        odd.push_back(
            c10::str(name, " has ", words, " different words in ", rows, " rows, so few are learned", remedy));
      }
      continue;
    }
    const auto values = table.numbers.select(1, number);
    number += std::ssize(numbers_of(column));
    if (column.type == CsvType::date) continue;
    const auto there = values.masked_select(values.isnan().logical_not());
    if (counts_rows(values)) {
      odd.push_back(name + (column.name.empty() ? " (it has no name)" : "") + " counts the rows, and is an input" +
                    remedy);
    } else if (there.numel() == 0) {
      odd.push_back(name + " has no value" + remedy);
    } else if (rows > 1 && there.min().equal(there.max())) {
      odd.push_back(c10::str(name, " is always ", there[0].item<float>(), remedy));
    } else if (column.name.empty() || column.name.starts_with("Unnamed:")) {
      odd.push_back(name + " has no name, and is an input" + remedy);
    }
  }
}

void note_merged(const std::string& column, std::vector<double>& numbers, std::vector<std::string>& odd) {
  std::ranges::sort(numbers);
  numbers.erase(std::unique(numbers.begin(), numbers.end()), numbers.end());
  double example = 0;
  std::size_t merged = 0;
  for (std::size_t i = 1; i < numbers.size(); ++i) {
    if (static_cast<float>(numbers[i]) != static_cast<float>(numbers[i - 1])) continue;
    if (merged++ == 0) example = numbers[i];
  }
  if (merged == 0) return;
  odd.push_back(c10::str("column '", shortened(column), "': ", numbers.size(), " whole numbers such as ",
                         static_cast<std::int64_t>(example), " are ", numbers.size() - merged,
                         " different ones in float32; if they are names, set ", types_key(column, "category")));
}

}  // namespace vernier
