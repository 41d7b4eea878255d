// Series, whose next values are forecast, and sequences with a class or numbers of each.
#include <c10/util/StringUtil.h>
#include <torch/types.h>
#include <vernier/data/data_source.h>
#include <vernier/data/numpy.h>
#include <vernier/error.h>

#include <algorithm>
#include <cctype>
#include <cmath>
#include <set>
#include <tuple>

#include "records.h"

namespace vernier {

namespace {

constexpr std::int64_t fewest_steps = 12;

// Steps that a forecast sees: two seasons of a calendar that is `days` from one step to the next, 0 without dates.
std::int64_t context_for(std::int64_t steps, double days) {
  constexpr std::pair<double, std::int64_t> seasons[] = {{0.5, 48}, {5, 14}, {20, 12}, {45, 24}, {200, 8}};
  std::int64_t context = days > 0 ? 10 : 24;
  for (const auto& [most, steps_seen] : seasons) {
    if (days > 0 && days < most) {
      context = steps_seen;
      break;
    }
  }
  constexpr std::int64_t part = 5;
  return std::clamp<std::int64_t>(steps / part, 1, context);
}

void add_forecast(Findings& found, const std::string& data, std::int64_t longest, double days) {
  if (longest < fewest_steps) {
    refuse(c10::str("'", file_of(data), "' has ", longest, " steps; a forecast needs ", fewest_steps));
  }
  found.task = {{"use", "\"sequence\""},    {"kind", "\"forecast\""},
                {"data", toml_value(data)}, {"context", std::to_string(context_for(longest, days))},
                {"horizon", "1"},           {"width", "32"}};
  found.comments = {{"context", "steps that a forecast sees"}, {"horizon", "steps that it predicts"}};
}

// Returns true for a column that only says when a row is. has_names: there are several series, of which each has its
// times.
bool is_time(const Field& field, bool is_first, bool has_names) {
  if (field.type == Field::Type::dates) return true;
  if (field.type != Field::Type::numbers) return false;
  const std::set<std::string> names = {"time", "date", "year", "month", "week", "day", "hour", "t", "step", "index"};
  const auto step = field.even_step();
  if (names.contains(small_letters(field.name))) return step || has_names;
  return is_first && step && std::abs(*step - 1) < 1e-6;  // row numbers
}

// Returns true if the dates rise in each of the series that `names` tells apart.
bool rises_in_each(const Field& dates, const Field& names) {
  const auto order = names.values.argsort(/*stable=*/true, /*dim=*/0, /*descending=*/false);
  const auto same = names.values.index_select(0, order).diff().eq(0);
  return dates.values.index_select(0, order).diff().gt(0).logical_or(same.logical_not()).all().item<bool>();
}

}  // namespace

std::optional<Findings> look_at_series(const Records& records, const GivenData& given) {
  const Field *time = nullptr, *panel = nullptr;
  std::vector<std::string> numbers;
  const auto words = std::ranges::count_if(records.fields, &Field::has_words);
  bool has_usual_target = false;
  const auto is_target = [&](const Field& field) { return !given.target.empty() && field.name == given.target; };
  for (const auto& field : records.fields) {
    if (field.has_words()) {
      panel = &field;
    } else if (is_time(field, &field == &records.fields.front(), words > 0) && !is_target(field)) {
      if (time == nullptr || field.type == Field::Type::dates) time = &field;
    } else {
      numbers.push_back(field.name);
      has_usual_target |= std::set<std::string>{"target", "label", "class", "y"}.contains(small_letters(field.name));
    }
  }
  if (words > 1 || numbers.empty()) return std::nullopt;
  const bool is_asked = given.use == "sequence";
  if (words == 1 && (time == nullptr || time->rises() || !rises_in_each(*time, *panel))) return std::nullopt;
  if (words == 0 && time != nullptr && !time->rises()) return std::nullopt;
  const bool is_single = numbers.size() == 1 && (time != nullptr || records.fields.size() == 1);
  const bool has_dates = time != nullptr && time->type == Field::Type::dates;
  const bool is_free = has_dates && given.target.empty() && words == 0 && !has_usual_target;
  double days = 0;
  auto longest = records.rows;
  if (words == 1) longest = panel->values.bincount().max().item<std::int64_t>();
  if (!is_asked && ((!is_single && !is_free) || (longest < fewest_steps && records.fields.size() > 1)))
    return std::nullopt;
  if (has_dates) days = words == 1 ? 1 : time->values.diff().median().item<double>();
  Findings found;
  add_forecast(found, records.path + ":" + c10::Join(",", numbers), longest, days);
  found.samples = records.rows;
  found.lines.push_back(c10::str(
      printable(records.path), ": ", words == 1 ? c10::str(panel->words.size(), " series of up to ") : "a series of ",
      longest, " steps", time == nullptr ? "" : " in the order of " + printable(time->name)));
  found.lines.push_back("forecasts the next value of " + printable(some_of(numbers)));
  if (words == 1) found.task.emplace_back("series", toml_value(panel->name));
  if (!given.target.empty() && numbers.size() > 1) {
    const auto output = std::ranges::find(numbers, given.target) - numbers.begin();
    if (output < std::ssize(numbers)) found.task.emplace_back("outputs", c10::str("[", output, "]"));
  }
  const bool has_gaps = std::ranges::any_of(
      records.fields, [&](const auto& field) { return field.has_gaps && std::ranges::count(numbers, field.name) > 0; });
  if (has_gaps) {
    found.task.emplace_back("missing", words == 1 ? "\"zero\"" : "\"previous\"");
    found.lines.push_back(words == 1 ? "a missing number becomes 0" : "a missing number becomes the one before");
  }
  if (!records.has_header) found.task.emplace_back("header", "false");
  if (records.fields.size() > 1) {
    found.others.push_back(
        {{records.path, "--target", given.target.empty() ? numbers.back() : given.target, "--set", "task.use=tabular"},
         "each row by itself"});
  }
  return found;
}

Findings findings_of_arrays(const NamedArray& x, const NamedArray& y, bool are_sequences) {
  const auto& values = x.second;
  const auto classes = class_numbers(y.second.to(torch::kFloat64).flatten());
  const bool is_classes = y.second.dim() == 1 && classes.defined();
  Findings found;
  found.samples = values.size(0);
  const std::string features = values.dim() > 2 ? c10::str(" and ", values.size(2), " features") : "";
  found.lines.push_back(
      are_sequences ? c10::str(x.first, ": ", values.size(0), " sequences of ", values.size(1), " steps", features)
                    : c10::str(x.first, ": a table of ", values.size(0), " rows and ", values.size(1), " columns"));
  found.lines.push_back(c10::str(y.first, ": ", is_classes ? c10::str(classes.numel(), " classes") : "numbers"));
  found.task = {{"use", are_sequences ? "\"sequence\"" : "\"tabular\""},
                {"kind", is_classes ? "\"classification\"" : "\"regression\""},
                {"data", toml_value(x.first)},
                {"targets", toml_value(y.first)}};
  return found;
}

namespace {

// The arrays to learn from in an archive: the largest of those with the most dimensions, but not one to test with.
struct Chosen {
  std::string x, y;
};

bool is_for_tests(const std::string& name) {
  return small_letters(name).find("test") != std::string::npos || small_letters(name).find("val") == 0;
}

Chosen choose_arrays(const Tensors& arrays, const std::string& target) {
  const auto rank = [](const Tensors::value_type& each) {
    return std::tuple(std::min<std::int64_t>(3, each.second.dim()), !is_for_tests(each.first), each.second.numel());
  };
  Chosen chosen;
  for (const auto& each : arrays) {
    if (each.first != target && (chosen.x.empty() || rank(each) > rank(*arrays.find(chosen.x)))) chosen.x = each.first;
  }
  if (chosen.x.empty()) return chosen;
  std::vector<std::string> fitting;
  for (const auto& [name, array] : arrays) {
    const bool fits = name != chosen.x && array.dim() == 1 && array.size(0) == arrays.at(chosen.x).size(0);
    if (fits && (target.empty() ? !is_for_tests(name) : name == target)) fitting.push_back(name);
  }
  const auto usual = std::ranges::find_if(fitting, [](const auto& name) {
    const auto small = small_letters(name);
    return small.starts_with("y") || small.starts_with("label") || small.starts_with("target");
  });
  if (usual != fitting.end()) chosen.y = *usual;
  if (usual == fitting.end() && fitting.size() == 1) chosen.y = fitting[0];
  return chosen;
}

}  // namespace

std::optional<Findings> look_at_sequences(const std::string& path, const GivenData& given) {
  const bool is_archive = ending_of(path) == ".npz";
  const auto arrays = is_archive ? read_npz(path) : Tensors{{"", read_npy(path)}};
  const auto source = [&](const std::string& name) { return is_archive ? path + ":" + name : path; };
  std::vector<std::string> shapes;
  for (const auto& [name, array] : arrays) shapes.push_back(c10::str(name, " ", array.sizes()));
  if (shapes.empty()) refuse("'" + path + "' has no array");
  const auto [x, y] = choose_arrays(arrays, given.target);
  const auto& values = arrays.at(x.empty() ? arrays.begin()->first : x);
  const bool is_series = (given.target.empty() && values.dim() == 1 && arrays.size() == 1) ||
                         (given.use == "sequence" && values.dim() == 2 && y.empty() && given.target.empty());
  Findings found;
  if (is_series) {
    add_forecast(found, source(x), values.size(0), 0);
    found.samples = values.size(0);
    found.lines.push_back(c10::str(printable(path), ": a series of ", values.size(0), " steps"));
    return found;
  }
  if (!is_archive) return std::nullopt;
  if (y.empty() || values.dim() < 2 || values.dim() > 3) {
    refuse("'" + path + "' has the arrays " + some_of(shapes) +
           "; a series has [steps], a table [rows, columns], sequences [samples, steps, features], and their targets "
           "[rows] or [samples], which --target names");
  }
  return findings_of_arrays({source(x), values}, {source(y), arrays.at(y)},
                            values.dim() == 3 || given.use == "sequence");
}

}  // namespace vernier
