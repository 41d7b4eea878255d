#include "comparison_view.h"

#include <vernier/json_in.h>

#include <algorithm>
#include <cmath>
#include <fstream>
#include <set>

#include "common/text/numbers.h"
#include "common/text/terminal.h"
#include "core/reworded_error.h"

namespace vernier {

namespace fs = std::filesystem;
using Json = nlohmann::ordered_json;

namespace {

constexpr const char* file_name = "compare.json";
constexpr std::size_t columns = 100, longest_name = 22;

std::string number(double value) {
  return print_number(value < 1000 ? "%.4g" : "%.0f", value);
}

// A range, with decimals where it is small.
std::string rounded(double value, int decimals) {
  return print_number(value >= 10 ? "%.0f" : decimals == 1 ? "%.1f" : "%.2f", value);
}

struct Cell {
  double median = 0, farthest = 0;  // farthest: the largest distance from the median
  bool has_range = false;           // there are at least two seeds
};

// Reads {"median", "low", "high"}. Returns false if there is none.
bool read(const Json& range, bool has_range, Cell& cell) {
  if (!range.is_object()) return false;
  cell.median = range.at("median");
  cell.farthest = std::max(range.at("high").get<double>() - cell.median, cell.median - range.at("low").get<double>());
  cell.has_range = has_range;
  return true;
}

std::string plus_minus(const Cell& cell, const std::string& range) {
  return cell.has_range ? " ±" + range : "";
}
std::string in_percent(const Cell& cell) {  // the range of a measured number
  const double part = cell.median == 0 ? 0 : std::abs(cell.farthest / cell.median);
  return plus_minus(cell, rounded(100 * part, 1) + "%");
}

struct Candidate {
  const Json& json;
  bool has_range;
  Cell cell;
  bool has(const std::string& key) { return read(json.at("measures").value(key, Json()), has_range, cell); }
  bool differs(const std::string& key) {
    return json.contains("against_baseline") && read(json.at("against_baseline").value(key, Json()), has_range, cell);
  }
  std::string speed() { return has("samples_per_second") ? number(cell.median) + in_percent(cell) : ""; }
  std::string speed_up() {
    return differs("samples_per_second")
               ? print_number("%.3gx", cell.median) + plus_minus(cell, rounded(cell.farthest, 2))
               : "";
  }
  std::string memory() { return has("peak_memory_bytes") ? number(cell.median / 1e6) + " MB" + in_percent(cell) : ""; }
  std::string saved() {
    return differs("peak_memory_bytes")
               ? print_number("%.1f%%", 100 * (1 - cell.median)) + plus_minus(cell, rounded(100 * cell.farthest, 1))
               : "";
  }
  std::string count(const char* key) {
    if (!has(key)) return "";
    return print_number("%.4g", cell.median) +
           (cell.farthest == 0 ? "" : plus_minus(cell, print_number("%.3g", cell.farthest)));
  }
  std::string loss(const std::string& key) {
    return has(key) ? print_number("%.5g", cell.median) + plus_minus(cell, print_number("%.2g", cell.farthest)) : "";
  }
  std::string gap(const std::string& key) {
    if (!differs(key)) return "";
    return print_number("%+.3g", cell.median) + plus_minus(cell, print_number("%.2g", cell.farthest));
  }
};

std::string name_of(const Json& candidate) {
  const std::string name = candidate.at("name");
  return name.size() > longest_name
             ? name.substr(0, longest_name / 2) + "…" + name.substr(name.size() - longest_name / 2 + 1)
             : name;
}

std::string interval_of(const Json& compared, double factor, const char* format) {
  const double one = factor * compared.at("interval").at(0).get<double>(),
               other = factor * compared.at("interval").at(1).get<double>();
  return print_number(format, std::min(one, other)) + " to " + print_number(format, std::max(one, other));
}

// A metric's better direction and its unit; "": not known, or none.
struct Declared {
  std::string better, unit;
};

// "faster, 1.55 to 1.59 times", for one that is higher or lower.
std::string claim_of(const std::string& key, const std::string& what, const Declared& declared, const Json& compared) {
  const bool is_higher = compared.at("verdict") == "higher";
  if (key == "samples_per_second") {
    return (is_higher ? "faster, " : "slower, ") + interval_of(compared, 1, "%.3g") + " times the samples/s";
  }
  if (key == "peak_memory_bytes") {
    return (is_higher ? "more memory, " : "less memory, ") + interval_of(compared, 1, "%.3g") + " times the baseline's";
  }
  const std::string direction = is_higher ? "higher" : "lower";
  const auto& [better, unit] = declared;
  const auto judged = better.empty() ? direction : (better == direction ? "better (" : "worse (") + direction + ")";
  return judged + ' ' + what + ", by " + interval_of(compared, is_higher ? 1 : -1, "%.3g") +
         (unit.empty() ? "" : ' ' + unit);
}

void append(std::string& list, const std::string& separator, const std::string& text) {
  list += (list.empty() ? "" : separator) + text;
}

// Every measure that has a verdict, claims first. "" where the candidate has no result beside the baseline's.
std::string verdict_of(const Json& candidate, const Json& comparison) {
  const auto metrics = comparison.value("metrics", Json::object()), units = comparison.value("units", Json::object());
  std::vector<std::pair<std::string, std::string>> words = {{"samples_per_second", "speed"},
                                                            {"peak_memory_bytes", "memory"},
                                                            {"loss", "loss"},
                                                            {"validation_loss", "validation loss"}};
  for (const auto& [name, better] : metrics.items()) words.emplace_back(name, name);
  std::string claims, equal, not_shown;
  bool are_too_few = false;
  for (const auto& [key, word] : words) {
    const auto compared = candidate.at("against_baseline").value(key, Json());
    if (!compared.is_object()) continue;
    const std::string verdict = compared.value("verdict", "");
    if (verdict == "higher" || verdict == "lower")
      append(claims, "; ", claim_of(key, word, {metrics.value(key, ""), units.value(key, "")}, compared));
    if (verdict == "equal") append(equal, ", ", word);
    if (verdict == "no difference shown") append(not_shown, ", ", word);
    are_too_few = are_too_few || verdict == "not enough seeds";
  }
  std::string all = claims;
  if (!equal.empty()) append(all, "; ", "equal to the last bit: " + equal);
  if (!not_shown.empty()) append(all, "; ", "no difference shown: " + not_shown);
  if (are_too_few) append(all, "; ", "not enough seeds for a verdict, which needs 3");
  return all;
}

// The name for what the runs of a candidate differ in.
std::string one_of(const Json& comparison) {
  return comparison.contains("folds") ? "fold" : "seed";
}

// Adds the reasons of runs without results, each text once, and what was emulated.
void add_notes(const Json& candidate, const std::string& one, ComparisonView& view) {
  const std::string name = candidate.at("name");
  std::set<std::string> seen;
  for (const auto& run : candidate.at("runs")) {
    const std::string state = run.at("state");
    const auto error = run.value("error", "");
    const bool holds_for_all = candidate.at("state") == state;
    const bool is_in_row = state == "done" || (holds_for_all && error.empty());
    if (!is_in_row && seen.insert(state + error).second) {
      const auto whose = holds_for_all ? "" : one + ' ' + json_text(run.at("seed")) + " ";
      view.notes.emplace_back(name, whose + state + (error.empty() ? "" : ": " + error));
    }
    const auto emulated = run.value("emulated", Json());
    if (emulated.is_null() || !seen.insert("emulated").second) continue;
    const auto what = emulated.is_string() ? emulated.get<std::string>() : json_text(emulated);
    view.notes.emplace_back(name, "this machine emulates " + what + "; the speed is not that of hardware");
  }
}

std::string heading_of(const Json& comparison, std::size_t seeds) {
  const auto one = one_of(comparison);
  const auto count = std::to_string(seeds) + " " + one + (seeds == 1 ? "" : "s");
  return "against " + comparison.at("baseline").get<std::string>() + ", " + count +
         (seeds > 1 ? ": the median, and ± the distance of the farthest " + one + " from it" : "");
}

// Two metrics in a table, so that it fits into the columns.
std::vector<TextRows> metric_tables(const Json& comparison) {
  constexpr std::size_t in_a_table = 2, longest_metric = 16;
  std::vector<std::string> names;
  const auto metrics = comparison.value("metrics", Json::object());
  for (const auto& [name, better] : metrics.items()) names.push_back(name);
  std::vector<TextRows> tables;
  for (std::size_t first = 0; first < names.size(); first += in_a_table) {
    const auto end = std::min(names.size(), first + in_a_table);
    TextRows rows = {{"candidate"}};
    for (auto i = first; i < end; ++i) {
      const auto& name = names[i];
      const bool is_long = name.size() > longest_metric;
      rows[0].push_back(is_long ? "…" + name.substr(name.size() - longest_metric + 1) : name);
      rows[0].push_back("gap");
    }
    for (const auto& json : comparison.at("candidates")) {
      Candidate candidate{json, json.at("runs").size() > 1, {}};
      rows.push_back({name_of(json)});
      for (auto i = first; i < end; ++i) {
        rows.back().push_back(candidate.loss(names[i]));
        rows.back().push_back(candidate.gap(names[i]));
      }
    }
    tables.push_back(std::move(rows));
  }
  return tables;
}

// "by accuracy, where higher is better: b 0.98, a 0.95"
std::string order_of(const Json& comparison) {
  const auto judged = comparison.value("judged_by", Json());
  if (!judged.is_object()) return "";
  const std::string metric = judged.at("metric");
  std::string text;
  for (const auto& name : judged.at("order")) {
    for (const auto& json : comparison.at("candidates")) {
      if (json.at("name") != name) continue;
      append(text, ", ", name.get<std::string>() + print_number(" %.5g", json.at("measures").at(metric).at("median")));
    }
  }
  const auto chosen = comparison.at("candidates").size();
  text = "by " + metric + ", where " + judged.at("better").get<std::string>() + " is better: " + text;
  if (chosen < 3) return text;
  return text + "\nThe best of " + std::to_string(chosen) + " is chosen by what it is measured on, so its " + metric +
         " is optimistic: measure it once on data that no candidate has seen, as in " +
         "vernier evaluate RUN --set task.validation=test.csv";
}

}  // namespace

ComparisonView view_of(const Json& comparison) try {
  ComparisonView view;
  view.speed = {{"candidate", "samples/s", "speed-up", "peak memory", "saved", "overflows", "skipped"}};
  view.losses = {{"candidate", "loss", "gap", "validation loss", "gap"}};
  std::size_t most_seeds = 0;
  for (const auto& json : comparison.at("candidates")) {
    const std::size_t seeds = json.at("runs").size();
    most_seeds = std::max(most_seeds, seeds);
    Candidate candidate{json, seeds > 1, {}};
    const auto name = name_of(json);
    const auto speed = candidate.speed();
    add_notes(json, one_of(comparison), view);
    if (speed.empty()) {
      view.speed.push_back({name, json.at("state")});
      view.losses.push_back({name, json.at("state")});
      if (view.speed.size() == 2) view.notes.emplace_back(name, "it has no result, so nothing can be compared with it");
      continue;
    }
    view.speed.push_back({name, speed, candidate.speed_up(), candidate.memory(), candidate.saved(),
                          candidate.count("overflows"), candidate.count("updates_skipped")});
    view.losses.push_back({name, candidate.loss("loss"), candidate.gap("loss"), candidate.loss("validation_loss"),
                           candidate.gap("validation_loss")});
    if (!json.contains("against_baseline")) continue;
    const auto verdict = verdict_of(json, comparison);
    if (!verdict.empty()) view.verdicts.emplace_back(json.at("name").get<std::string>(), verdict);
  }
  view.heading = heading_of(comparison, most_seeds);
  view.metrics = metric_tables(comparison);
  view.order = order_of(comparison);
  return view;
} catch (const Json::exception& error) {
  throw Refused(std::string(file_name) + " is damaged (" + reworded_error(error.what()) +
                "); run `vernier compare` again");
}

std::string text_of(const ComparisonView& view) {
  std::string text =
      wrapped(view.heading + '\n', columns, 2) + '\n' + aligned(view.speed) + '\n' + aligned(view.losses);
  for (const auto& rows : view.metrics) text += '\n' + aligned(rows);
  if (!view.order.empty()) text += '\n' + wrapped(view.order + '\n', columns, 2);
  const auto add = [&](const char* head, const std::vector<std::pair<std::string, std::string>>& lines) {
    if (!lines.empty()) text += std::string("\n") + head + '\n';
    for (const auto& [name, sentence] : lines) text += wrapped(name + ": " + sentence + '\n', columns, 2);
  };
  add("verdicts", view.verdicts);
  add("notes", view.notes);
  return text;
}

bool is_comparison(const fs::path& folder) {
  std::error_code none;
  return fs::is_regular_file(folder / file_name, none);
}

Json read_comparison(const fs::path& folder) {
  std::ifstream file(folder / file_name);
  auto comparison = json_in<Json>(file);
  if (!comparison.is_object()) {
    throw Refused((folder / file_name).string() + ": it is damaged; run `vernier compare` again");
  }
  view_of(comparison);  // throws where a part is missing
  return comparison;
}

std::vector<RunFiles> runs_of(const Json& comparison, const fs::path& folder) try {
  std::vector<RunFiles> runs;
  for (const auto& candidate : comparison.value("candidates", Json::array())) {
    for (const auto& run : candidate.at("runs")) {
      const auto path = folder / run.at("folder").get<std::string>();
      if (!is_run(path)) continue;
      runs.push_back(read_run(path));
      runs.back().name = candidate.at("name");
      break;
    }
  }
  return runs;
} catch (const Json::exception&) {
  throw Refused((folder / file_name).string() + ": it is damaged; run `vernier compare` again");
}

}  // namespace vernier
