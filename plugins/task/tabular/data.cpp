#include "data.h"

#include <c10/util/StringUtil.h>
#include <torch/types.h>
#include <vernier/data/data_source.h>
#include <vernier/data/digits.h>
#include <vernier/error.h>
#include <vernier/json_in.h>

#include <algorithm>
#include <charconv>
#include <cstring>
#include <nlohmann/json.hpp>

namespace tabular {

namespace {

using Json = nlohmann::ordered_json;
using vernier::CsvType;
using vernier::shortened;

constexpr std::size_t most_shown = 8;

// "a 5, b 3 and 7 more"
std::string listed(const std::vector<std::string>& parts, std::size_t most = most_shown) {
  std::string text;
  for (std::size_t i = 0; i < std::min(parts.size(), most); ++i) text += (i > 0 ? ", " : "") + parts[i];
  return parts.size() > most ? c10::str(text, " and ", parts.size() - most, " more") : text;
}

std::string with_count(const std::string& name, std::int64_t count) {
  return c10::str(name.empty() ? "''" : shortened(name, 40), " ", count);
}

std::string plural(std::int64_t count, const char* one, const char* many) {
  return c10::str(count, " ", count == 1 ? one : many);
}

std::optional<std::int64_t> whole_number(const std::string& word) {
  std::int64_t number = 0;
  const auto* end = word.data() + word.size();
  const auto [last, error] = std::from_chars(word.data(), end, number);
  if (error != std::errc() || last != end) return {};
  return number;
}

Json column_counts(const Facts& facts) {
  Json counts = Json::object();
  for (std::size_t i = 0; i < facts.counts.size(); ++i) counts[facts.classes[i]] = facts.counts[i];
  return counts;
}

std::string columns_summary(const Facts& facts) {
  if (facts.is_array) return plural(facts.numbers, "number", "numbers");
  std::int64_t numbers = 0;
  std::vector<std::string> categories, dates;
  for (const auto& column : facts.schema.columns) {
    if (column.type == CsvType::number) ++numbers;
    if (column.type == CsvType::category) {
      categories.push_back(with_count(column.name, std::ssize(column.vocabulary)));
    } else if (column.type == CsvType::date) {
      dates.push_back(shortened(column.name, 40) + " (" + column.form + ")");
    }
  }
  std::vector<std::string> parts;
  if (numbers > 0) parts.push_back(plural(numbers, "number", "numbers"));
  if (!categories.empty()) {
    parts.push_back(plural(std::ssize(categories), "category", "categories") + ": " + listed(categories));
  }
  if (!dates.empty()) parts.push_back(plural(std::ssize(dates), "date", "dates") + ": " + listed(dates));
  return listed(parts);
}

// The classes that have no row of those to train on.
std::vector<std::string> without_training(const Facts& facts) {
  std::vector<std::string> names;
  for (std::size_t i = 0; i < facts.counts.size(); ++i) {
    if (facts.counts[i] == 0) names.push_back(facts.classes[i]);
  }
  return names;
}

std::vector<std::string> check_classes(const Facts& facts, const std::vector<std::int64_t>& counts, std::int64_t rows,
                                       const std::string& target) {
  const auto classes = std::ssize(facts.classes);
  constexpr std::int64_t many = 10;
  if (classes < 2) {
    vernier::refuse(c10::str(target, " has ", classes, " class; a classification needs at least 2"));
  }
  if ((classes > many && classes * 2 > rows) || (classes == rows && rows > 2)) {
    vernier::refuse(c10::str(target, " has ", classes, " classes in ", rows,
                             " rows, nearly one for each row, which no model learns; name another column, or for "
                             "numbers set kind = \"regression\""));
  }
  std::vector<std::string> odd, single;
  for (std::size_t i = 0; i < counts.size(); ++i) {
    if (counts[i] == 1) single.push_back("'" + shortened(facts.classes[i], 40) + "'");
  }
  if (!single.empty()) {
    odd.push_back(plural(std::ssize(single), "class has", "classes have") + " one row alone: " + listed(single) +
                  "; a split by class holds none of it out, so the metrics say nothing about it");
  }
  const auto first = whole_number(facts.classes.front()), last = whole_number(facts.classes.back());
  if (are_whole(facts.classes) && *last - *first + 1 > classes) {
    odd.push_back(c10::str("the labels are ", classes, " different whole numbers from ", *first, " to ", *last,
                           ", with gaps; each of them is a class"));
  }
  const auto missing = without_training(facts);
  if (!missing.empty()) {
    odd.push_back(plural(std::ssize(missing), "class has", "classes have") + " no row to train on: " + listed(missing) +
                  "; split = \"stratified\" gives each class some");
  }
  return odd;
}

}  // namespace

std::vector<std::int64_t> counts_of(const torch::Tensor& codes, std::size_t classes) {
  const auto counts = codes.bincount({}, static_cast<std::int64_t>(classes)).contiguous();
  return {counts.const_data_ptr<std::int64_t>(), counts.const_data_ptr<std::int64_t>() + counts.numel()};
}

bool are_whole(const std::vector<std::string>& words) {
  return std::ranges::all_of(words, [](const auto& word) { return whole_number(word).has_value(); });
}

std::string Facts::json() const {
  Json facts = {{"task", is_classification ? "classification" : "regression"}};
  if (is_array) {
    facts["numbers"] = numbers;
  } else {
    facts.update(Json::parse(json_of(schema)));
    facts["missing_words"] = missing;
    facts["decimal"] = decimal;
    facts["thousands"] = thousands;
    facts["fills"] = fills;
  }
  if (is_classification) {
    facts["classes"] = classes;
    facts["rows_of_classes"] = column_counts(*this);
  }
  facts["rows"] = rows;
  facts["data"] = fingerprint;
  return vernier::json_text(facts);
}

Facts Facts::parse(const std::string& text) {
  const auto json = vernier::json_in<Json>(text);
  Facts facts;
  facts.is_classification = json.at("task") == "classification";
  facts.is_array = json.contains("numbers");
  if (facts.is_array) {
    facts.numbers = json["numbers"];
  } else {
    facts.schema = vernier::parse_csv_schema(text);
    facts.missing = json.at("missing_words").get<std::vector<std::string>>();
  }
  if (facts.is_classification) {
    facts.classes = json.at("classes").get<std::vector<std::string>>();
    for (const auto& name : facts.classes) facts.counts.push_back(json.at("rows_of_classes").at(name));
  }
  facts.rows = json.at("rows");
  facts.fingerprint = json.at("data");
  return facts;
}

void Facts::read_as(const vernier::CsvOptions& options) {
  missing = options.missing;
  decimal = options.decimal;
  thousands = options.thousands == 0 ? "" : std::string(1, options.thousands);
  fills = options.fill != vernier::CsvFill::refuse;
}

void Facts::put_columns(Shape& shape) const {
  shape.numbers = numbers;
  for (const auto& column : schema.columns) {
    if (column.type == CsvType::category) shape.categories.push_back(std::ssize(column.vocabulary) + 1);
    shape.numbers += std::ssize(numbers_of(column));
  }
  shape.outputs = is_classification ? std::ssize(classes) : 1;
}

Data data_of(vernier::CsvTable table) {
  Data data;
  data.numbers = table.numbers;
  data.targets = table.target;
  data.rows = table.rows;
  data.groups = table.groups;
  data.found = table.found;
  data.dataset = vernier::csv_dataset(std::move(table));
  return data;
}

void with_rows(const torch::Tensor& matrix, const torch::Tensor& rows,
               const std::function<void(const torch::Tensor&)>& work) {
  const auto* row = rows.const_data_ptr<std::int64_t>();
  const auto count = rows.numel(), all = matrix.size(0);
  if (matrix.numel() == 0 || !matrix.is_contiguous() ||
      std::adjacent_find(row, row + count, std::greater_equal<>()) != row + count) {
    return work(matrix.index_select(0, rows));
  }
  std::vector<bool> is_given(static_cast<std::size_t>(all));
  for (std::int64_t i = 0; i < count; ++i) is_given[static_cast<std::size_t>(row[i])] = true;
  std::vector<std::int64_t> others;
  for (std::int64_t i = 0; i < all; ++i) {
    if (!is_given[static_cast<std::size_t>(i)]) others.push_back(i);
  }
  const auto aside = matrix.index_select(0, torch::tensor(others, torch::kInt64));
  auto* begin = static_cast<char*>(matrix.mutable_data_ptr());
  const auto width = matrix.nbytes() / static_cast<std::size_t>(all);
  const auto at = [&](std::int64_t i) { return begin + static_cast<std::size_t>(i) * width; };
  for (std::int64_t i = 0; i < count; ++i) std::memmove(at(i), at(row[i]), width);
  work(matrix.narrow(0, 0, count));
  for (auto i = count - 1; i >= 0; --i) std::memmove(at(row[i]), at(i), width);
  for (std::size_t i = 0; i < others.size(); ++i) {
    std::memcpy(at(others[i]), static_cast<const char*>(aside.const_data_ptr()) + i * width, width);
  }
}

torch::Tensor read_numbers(const std::string& path, std::int64_t columns) {
  const auto numbers = vernier::read_source(path).tensor;
  if (numbers.dim() != 2) {
    vernier::refuse(c10::str("'", path, "' has the shape ", numbers.sizes(), "; wanted is [rows, columns]"));
  }
  const auto wide = vernier::as_floats(numbers);
  const auto bad = wide.isfinite().all(1).logical_not().nonzero();
  if (bad.size(0) > 0) {
    vernier::refuse(c10::str("'", path, "' has a number that is not finite in row ", bad[0].item<std::int64_t>()));
  }
  if (columns != 0 && wide.size(1) != columns) {
    vernier::refuse(c10::str("'", path, "' has ", wide.size(1), " columns, and the training data have ", columns));
  }
  return wide;
}

Data read_arrays(const std::string& path, const std::string& targets, const std::string& kind, bool is_first,
                 Facts& facts) {
  Data data;
  data.numbers = read_numbers(path, facts.numbers);
  facts.numbers = data.numbers.size(1);
  const auto source = vernier::read_source(targets);
  if (source.tensor.dim() != 1 || source.tensor.size(0) != data.numbers.size(0)) {
    vernier::refuse(c10::str("'", targets, "' has the shape ", source.tensor.sizes(), "; wanted is [",
                             data.numbers.size(0), "], a target for each row of '", path, "'"));
  }
  if (is_first) {
    const bool guesses = kind == "auto" && source.words.empty();
    data.guessed_classes = guesses && vernier::class_numbers(source.tensor).defined();
    data.guessed_numbers = guesses && !data.guessed_classes && vernier::are_few_whole(source.tensor);
    facts.is_classification = kind == "classification" || data.guessed_classes || !source.words.empty();
  }
  if (facts.is_classification) {
    vernier::Classes classes{std::ssize(facts.classes), facts.classes};
    data.targets = vernier::codes_of(source, classes, "set kind = \"regression\"");
    facts.classes = names_of(classes);
  } else {
    vernier::require_finite(source);
    data.targets = vernier::as_floats(source.tensor);
  }
  data.rows = torch::arange(data.numbers.size(0));
  const auto fingerprint = vernier::fingerprint_of({data.numbers, data.targets});
  data.dataset = vernier::dataset_of({data.numbers, data.targets}, path, fingerprint);
  return data;
}

std::string summary(const Facts& facts, const Data& data) {
  std::string text;
  const auto targets = data.targets.index_select(0, data.rows);
  if (facts.is_classification) {
    const auto counts = counts_of(targets, facts.classes.size());
    std::vector<std::string> classes;
    for (std::size_t i = 0; i < counts.size(); ++i) classes.push_back(with_count(facts.classes[i], counts[i]));
    text = c10::str("classification of ", counts.size(), " classes (", listed(classes), ")");
    if (data.guessed_classes)
      text += ", since the target has whole numbers; for a regression set kind = \"regression\"";
  } else {
    text = c10::str("regression of ", facts.target().empty() ? "numbers" : shortened(facts.target(), 40), " (",
                    targets.min().item<double>(), " to ", targets.max().item<double>(), ")");
    if (data.guessed_numbers) text += ", whole ones that look like counts; for classes set kind = \"classification\"";
  }
  text += "; " + plural(data.rows.numel(), "row", "rows") + ", " + columns_summary(facts);
  if (facts.is_array) return text;
  std::vector<std::string> filled;
  for (const auto& [name, count] : data.found.filled) filled.push_back(with_count(name, count));
  if (!filled.empty()) text += "; without a value: " + listed(filled);
  if (data.found.dropped > 0) text += "; dropped " + plural(data.found.dropped, "row", "rows");
  std::vector<std::string> left_out;
  for (const auto& name : data.found.left_out) left_out.push_back(name.empty() ? "''" : shortened(name, 40));
  return text + "; left out: " + (left_out.empty() ? "none" : listed(left_out));
}

std::vector<std::string> check_target(const Facts& facts, const Data& data, const vernier::SplitRows& split,
                                      const std::string& file) {
  const auto target = "'" + file + "': the target" +
                      (facts.target().empty() ? "" : ", column '" + shortened(facts.target()) + "' (`target`),");
  if (split.training.numel() == 0) vernier::refuse("'" + file + "': no row is left to train on");
  const auto targets = data.targets.index_select(0, data.rows);
  if (facts.is_classification) {
    return check_classes(facts, counts_of(targets, facts.classes.size()), targets.numel(), target);
  }
  if (targets.numel() > 1 && targets.min().equal(targets.max())) {
    vernier::refuse(c10::str(target, " is always ", targets[0].item<double>(), "; there is nothing to learn"));
  }
  return {};
}

}  // namespace tabular
