#include "csv_warnings.h"

#include <ATen/ops/_unique.h>
#include <c10/util/StringUtil.h>
#include <torch/types.h>
#include <vernier/data/csv.h>
#include <vernier/data/data_source.h>
#include <vernier/error.h>

#include <algorithm>
#include <cstdlib>
#include <initializer_list>
#include <utility>

#include "csv_fit.h"
#include "csv_types.h"

namespace vernier {

namespace {

constexpr std::int64_t few_rows = 10;

std::string leave_out_key(const std::string& name) {
  return "leave_out = [\"" + shortened(name) + "\"]";
}

constexpr std::int64_t many_rows = 20;

// Returns whether whole numbers look as if they count rows that were shuffled. All are different, though they are from
// so small a range that as many random numbers would contain repeats. Some of the rows may be missing.
bool are_drawn_once(const torch::Tensor& numbers) {
  const auto rows = numbers.numel();
  if (rows < many_rows || !numbers.equal(numbers.trunc())) return false;
  const auto first = numbers.min().item<double>(), last = numbers.max().item<double>();
  const auto wide = static_cast<double>(rows);
  constexpr double most = 3, pairs = 12;  // pairs: expected number of equal ones
  if (first < 0 || first * wide > 10 * last || last > most * wide || wide * wide < 2 * pairs * last) return false;
  return std::get<0>(at::_unique(numbers)).numel() == rows;
}

// Returns whether whole numbers count the rows, also after some rows were left out or the rest was shuffled. Names
// decide where values do not: ranks are all different too. has_ranks: several columns are drawn once.
bool counts_rows(CsvName name, const torch::Tensor& numbers, bool has_ranks) {
  const auto rows = numbers.numel();
  constexpr std::int64_t least = 3, many = many_rows;
  if (rows < least || !numbers.equal(numbers.trunc())) return false;
  const auto steps = numbers.narrow(0, 1, rows - 1) - numbers.narrow(0, 0, rows - 1);
  const auto sorted = std::get<0>(numbers.sort());
  const auto first = sorted[0].item<double>(), last = sorted[rows - 1].item<double>();
  const auto different = 1 + sorted.narrow(0, 1, rows - 1).ne(sorted.narrow(0, 0, rows - 1)).sum().item<std::int64_t>();
  if (first < 0) return false;
  if (name == CsvName::none) {  // tables put together or drawn with replacement have some numbers twice
    const bool are_years = first >= 1500 && last <= 2100;
    return !are_years && (different * 2 >= rows || steps.eq(1).sum().item<std::int64_t>() * 4 >= rows * 3);
  }
  if (name == CsvName::row && different * 10 > rows * 9) return true;
  if (different < rows) return false;
  const auto wide = static_cast<double>(rows);
  const bool is_sample = rows >= many && last <= 20 * wide && first * wide <= 10 * last;
  if (name == CsvName::number) return is_sample || (first <= 1 && last < first + wide);
  if (name != CsvName::other || rows < many) return false;
  const bool rises = first <= 1 && last <= 1.5 * wide && steps.gt(0).all().item<bool>();
  return rises || (!has_ranks && are_drawn_once(numbers));
}

// Returns whether two columns or more, whose names say nothing, have each number once: places in several rankings.
bool has_rankings(const CsvTable& table) {
  std::int64_t number = 0, rankings = 0;
  for (const auto& column : table.schema.columns) {
    const auto place = std::exchange(number, number + std::ssize(numbers_of(column)));
    if (column.type != CsvType::number || meaning_of(column.name) != CsvName::other) continue;
    const auto values = table.numbers.select(1, place);
    rankings += are_drawn_once(values) && values.diff().lt(0).any().item<bool>();
  }
  return rankings > 1;
}

// Notes two words of a column that differ in their case or in blanks alone.
void note_cases(const CsvColumn& column, std::vector<std::string>& odd) {
  const auto alike = alike_words(column.vocabulary);
  if (!alike.empty()) odd.push_back("column '" + shortened(column.name) + "' has " + alike);
}

// Notes inputs that are the target again: a model that sees its target learns nothing else.
void note_copies(const CsvTable& table, std::vector<std::string>& odd) {
  const auto& target = *table.schema.target;
  if (table.target.size(0) < few_rows) return;
  auto numbers = table.target;
  const bool is_category = target.type == CsvType::category;
  if (is_category && all_numbers(target.vocabulary) && !target.vocabulary.empty()) {
    std::vector<double> values;
    for (const auto& word : target.vocabulary) values.push_back(std::atof(word.c_str()));
    numbers = torch::tensor(values, torch::kFloat64).index_select(0, table.target.clamp_min(0));
  }
  std::int64_t number = 0, category = 0;
  for (const auto& column : table.schema.columns) {
    bool is_copy = false;
    if (column.type == CsvType::category) {
      const auto codes = table.categories.select(1, category++);
      is_copy = is_category && column.vocabulary == target.vocabulary && codes.equal(table.target);
    } else {
      const auto values = table.numbers.select(1, number);
      number += std::ssize(numbers_of(column));
      is_copy = numbers.is_floating_point() && values.to(numbers.scalar_type()).equal(numbers);
    }
    if (is_copy) {
      odd.push_back("column '" + shortened(column.name) + "' is the same as the target '" + shortened(target.name) +
                    "'; to leave it out: " + leave_out_key(column.name));
    }
  }
}

}  // namespace

void note_odd_columns(CsvTable& table, std::vector<std::string>& odd) {
  const auto rows = table.numbers.size(0);
  if (table.schema.target) {
    note_copies(table, odd);
    note_cases(*table.schema.target, odd);
  }
  const bool has_ranks = has_rankings(table);
  std::int64_t number = 0;
  for (const auto& column : table.schema.columns) {
    const auto name = "column '" + shortened(column.name) + "'";
    const auto remedy = "; to leave it out: " + leave_out_key(column.name);
    const auto meaning = meaning_of(column.name);
    if (column.type == CsvType::category) {
      const auto words = std::ssize(column.vocabulary);
      note_cases(column, odd);
      if (words == 1 && rows > 1) {
        odd.push_back(name + " is always '" + shortened(column.vocabulary[0]) + "'" + remedy);
      } else if ((words > few_rows && words * 2 > rows) || (meaning == CsvName::none && words == rows && rows > 2)) {
        table.found.row_names.push_back(column.name);
        odd.push_back(
            c10::str(name, " has ", words, " different words in ", rows, " rows, so few are learned", remedy));
      }
      continue;
    }
    const auto values = table.numbers.select(1, number);
    number += std::ssize(numbers_of(column));
    if (column.type == CsvType::date) continue;
    const auto there = values.masked_select(values.isnan().logical_not());
    if (counts_rows(meaning, there, has_ranks)) {
      table.found.row_names.push_back(column.name);
      odd.push_back(name + (column.name.empty() ? " (it has no name)" : "") + " counts the rows, and is an input" +
                    remedy);
    } else if (there.numel() == 0) {
      odd.push_back(name + " has no value" + remedy);
    } else if (rows > 1 && there.min().equal(there.max())) {
      odd.push_back(c10::str(name, " is always ", there[0].item<double>(), remedy));
    } else if (meaning == CsvName::none) {
      odd.push_back(name + " has no name, and is an input" + remedy);
    }
  }
}

void note_signs(const CsvColumn& column, const WrittenNumbers& written, std::vector<std::string>& odd) {
  const std::size_t ways = written.signs.size() + (written.count > 0 ? 1 : 0);
  if (!column.has_signs || written.signs.empty() || ways < 2) return;
  std::string all;
  for (const auto& sign : written.signs) all += (all.empty() ? "" : ", ") + sign;
  odd.push_back("column '" + shortened(column.name) + "' has numbers with " + all +
                (written.count > 0 ? " and without" : "") +
                ", which are read alike: 13% is 13; write all of them in one way");
}

void note_written(const CsvColumn& column, const WrittenNumbers& written, const Remedies& remedies,
                  std::vector<std::string>& odd) {
  if (column.type != CsvType::number) return;
  const auto name = "column '" + shortened(column.name) + "'";
  if (written.padded > 0) {
    odd.push_back(name + " has numbers with leading zeros, such as " + written.padding +
                  ", which are lost; if they are names, set " + types_key(column.name, "category"));
  }
  if (written.dates > 0 && written.dates == written.count) {
    odd.push_back(name + " has numbers such as " + written.date + "; if they are dates, set " +
                  types_key(column.name, "date"));
  }
  const auto sentinel = written.sentinel();
  if (sentinel.empty()) return;
  odd.push_back(name + " has " + sentinel + ", far from all other numbers; if it stands for no value, set " +
                remedies.missing_words({sentinel}));
}

void note_missing_cells(const CsvColumn& column, const MissingCells& cells, bool drops, std::int64_t rows,
                        const Remedies& remedies, std::vector<std::string>& odd) {
  if (cells.count == 0) return;
  const bool is_category = column.type == CsvType::category;
  const auto name = "column '" + shortened(column.name) + "': ";
  const auto* outcome = drops         ? "their rows are not used"
                        : is_category ? "they are a category of their own"
                                      : "they are filled in";
  const auto& words = cells.words;
  if (is_category && words.count > 0) {
    odd.push_back(c10::str(name, words.count, words.count == 1 ? " cell is '" : " cells are words such as '",
                           shortened(words.example), "', which stand for no value: ", outcome,
                           "; if it is a word, set ", remedies.missing_words({}, words.example)));
  } else {
    odd.push_back(c10::str(name, cells.count, " of ", rows, " values are missing: ", outcome));
  }
}

void note_merged(const std::string& column, std::vector<std::int64_t>& numbers, std::vector<std::string>& odd) {
  std::ranges::sort(numbers);
  numbers.erase(std::unique(numbers.begin(), numbers.end()), numbers.end());
  std::int64_t example = 0;
  std::size_t merged = 0;
  double mean = 0;
  for (const auto number : numbers) mean += static_cast<double>(number) / static_cast<double>(numbers.size());
  const auto centred = [mean](std::int64_t number) { return static_cast<float>(static_cast<double>(number) - mean); };
  for (std::size_t i = 1; i < numbers.size(); ++i) {
    if (centred(numbers[i]) != centred(numbers[i - 1])) continue;
    if (merged++ == 0) example = numbers[i];
  }
  if (merged == 0) return;
  odd.push_back(c10::str("column '", shortened(column), "': ", numbers.size(), " whole numbers such as ", example,
                         " are ", numbers.size() - merged,
                         " different ones in float32, also without their mean; if they are names, set ",
                         types_key(column, "category")));
}

}  // namespace vernier
