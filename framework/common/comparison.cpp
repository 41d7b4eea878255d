#include "comparison.h"

#include <vernier/json_in.h>
#include <vernier/json_text.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <optional>
#include <set>
#include <sstream>

#include "common/run_files.h"
#include "common/text/quoting.h"
#include "statistics.h"

namespace vernier {

namespace fs = std::filesystem;
using Json = nlohmann::ordered_json;

namespace {

struct Measure {
  std::string key;   // the measure's name in compare.json
  std::string path;  // its JSON pointer in summary.json
  bool is_ratio;     // true: a ratio to the baseline; false: a difference from it
  double least;      // a smaller part of the baseline's value is never claimed
  bool is_judged;
  double tolerance = 0;  // nor is a smaller difference
};
const std::vector<Measure> always = {{"samples_per_second", "/this_process/samples_per_second", true, 0.03, true},
                                     {"peak_memory_bytes", "/this_process/peak_memory_bytes", true, 0.02, true},
                                     {"loss", "/loss/final", false, 0.001, true},
                                     {"validation_loss", "/validation_loss/final", false, 0.001, true},
                                     {"overflows", "/amp/overflow_count", false, 0, false},
                                     {"updates_skipped", "/updates_skipped", false, 0, false}};

constexpr double least_of_metrics = 0.001;

// Returns the measures that every run has, and the metrics of the validations in this comparison.
std::vector<Measure> measures_of(const Json& metrics) {
  auto all = always;
  for (const auto& [name, better] : metrics.items()) {
    all.push_back({name, "/validation/" + name + "/final", false, least_of_metrics, true});
  }
  return all;
}

// The metrics of the validations by name, without names that other measures have.
struct Metrics {
  Json better = Json::object();  // "higher" or "lower", or ""
  Json units = Json::object();   // units of the metrics that declare one
};
Metrics metrics_of(const std::vector<Row>& rows) {
  Metrics metrics;
  for (const auto& row : rows) {
    for (const auto& trial : row.trials) {
      if (!is_run(trial.folder)) continue;
      const auto run = read_run(trial.folder);
      for (const auto& metric : run.metrics()) {
        const bool is_plain = metric.name.find_first_of("/~") == std::string::npos;
        if (!is_plain || std::ranges::find(always, metric.name, &Measure::key) != always.end()) continue;
        metrics.better[metric.name] = metric.better;
        if (const auto unit = run.unit_of(metric.name); !unit.empty()) metrics.units[metric.name] = unit;
      }
    }
  }
  return metrics;
}

bool has_results(const std::string& state) {
  return state == "done" || state == "finished" || state == "time_limit";
}

std::optional<double> finite_number_in(const Json& value) {
  return value.is_number() && std::isfinite(value.get<double>()) ? std::optional(value.get<double>()) : std::nullopt;
}

using ByRun = std::map<std::size_t, double>;  // by the place of a run among those of its candidate

ByRun values_of(const Json& candidate, const std::string& key) {
  ByRun values;
  const auto& runs = candidate["runs"];
  for (std::size_t i = 0; i < runs.size(); ++i) {
    const auto number = finite_number_in(runs[i].value(key, Json()));
    if (number && has_results(runs[i]["state"])) values[i] = *number;
  }
  return values;
}

Json json_of(const MedianRange& range) {
  return {{"median", range.median}, {"low", range.low}, {"high", range.high}};
}

// In the order of Verdict.
constexpr const char* verdict_words[] = {"equal", "higher", "lower", "no difference shown", "not enough seeds"};

Json judged(const Measure& measure, const std::vector<double>& before, const std::vector<double>& after, Rule rule) {
  std::vector<double> baseline = before, candidate = after;
  double least = std::max(measure.least * std::abs(median_range_of(before).median), measure.tolerance);
  if (measure.is_ratio) {
    for (auto* values : {&baseline, &candidate}) {
      for (auto& value : *values) value = std::log(value);
    }
    least = std::log1p(measure.least);
  }
  rule.is_timed = measure.is_ratio, rule.least = least;
  const auto [verdict, interval] = judge(baseline, candidate, rule);
  Json result = {{"verdict", verdict_words[static_cast<std::size_t>(verdict)]}};
  if (interval) {
    const auto [low, high] = *interval;
    result["interval"] = measure.is_ratio ? Json{std::exp(low), std::exp(high)} : Json{low, high};
  }
  return result;
}

// Against the baseline, of the seeds that both have; null if there is none.
Json against(const Measure& measure, const ByRun& baseline, const ByRun& candidate, const Rule& rule) {
  std::vector<double> before, after, differences;
  for (const auto& [run, value] : baseline) {
    const auto found = candidate.find(run);
    if (found == candidate.end() || (measure.is_ratio && (value <= 0 || found->second <= 0))) continue;
    before.push_back(value);
    after.push_back(found->second);
    differences.push_back(measure.is_ratio ? found->second / value : found->second - value);
  }
  if (differences.empty()) return nullptr;
  Json result = json_of(median_range_of(differences));
  result["seeds"] = differences.size();
  if (measure.is_judged) result.update(judged(measure, before, after, rule));
  return result;
}

// "done"; of a candidate whose runs ended in different ways "2 of 3 done".
std::string state_of(const Json& runs) {
  std::set<std::string> states;
  std::int64_t with_results = 0;
  for (const auto& run : runs) {
    const std::string state = run["state"];
    states.insert(state);
    with_results += has_results(state) ? 1 : 0;
  }
  if (states.size() == 1) return *states.begin();
  return std::to_string(with_results) + " of " + std::to_string(runs.size()) + " done";
}

// Losses of different tasks have nothing in common.
void refuse_different_tasks(const std::vector<Row>& rows) {
  std::string first, first_name;
  for (const auto& row : rows) {
    for (const auto& trial : row.trials) {
      if (!is_run(trial.folder)) continue;
      const auto summary = read_run(trial.folder).summary;
      if (!summary.is_object()) continue;  // the run was killed
      const auto task = summary.value(Json::json_pointer("/configuration/task/use"), "");
      if (first.empty()) first_name = row.name;
      if (first.empty()) first = task;
      if (task == first || task.empty()) continue;
      throw Refused(row.name + " trained task/" + task + ", and " + first_name + " task/" + first +
                    ": their losses cannot be compared; name runs of one task");
    }
  }
}

}  // namespace

bool is_complete(const fs::path& run) {
  if (!is_run(run)) return false;
  try {
    const auto state = read_run(run).state;
    return has_results(state) || state == "diverged";
  } catch (const Refused&) {  // it is damaged
    return false;
  }
}

Json result_of(const Trial& trial, const fs::path& root) {
  const auto folder = root.empty() ? trial.folder : fs::relative(trial.folder, root);
  Json result = {{"seed", trial.seed}, {"folder", folder.string()}};
  if (!trial.refusal.empty()) {
    result["state"] = "refused";
    result["error"] = trial.refusal;
    return result;
  }
  if (!is_run(trial.folder)) {
    result["state"] = "not trained";
    return result;
  }
  const auto run = read_run(trial.folder);
  result["state"] = run.state;
  if (!trial.error.empty()) result["error"] = trial.error;
  if (!run.summary.is_object()) return result;
  const auto at = [&](const std::string& path) { return value_at(run.summary, path); };
  if (run.summary.contains("error")) result["error"] = run.summary["error"];
  if (!at("/this_process/emulated").is_null()) result["emulated"] = at("/this_process/emulated");
  for (const auto& measure : measures_of(metrics_of({{"", {trial}}}).better)) result[measure.key] = at(measure.path);
  if (trial.peak_memory) result["peak_memory_bytes"] = *trial.peak_memory;
  result["digest"] = at("/digest");
  return result;
}

Json comparison_of(const std::vector<Row>& rows, const fs::path& root, double tolerance, int folds) {
  refuse_different_tasks(rows);
  auto [better, units] = metrics_of(rows);
  auto measures = measures_of(better);
  for (auto& measure : measures) {
    if (measure.key == "loss" || measure.key == "validation_loss") measure.tolerance = tolerance;
  }
  Json candidates = Json::array();
  for (const auto& row : rows) {
    Json runs = Json::array();
    for (const auto& trial : row.trials) runs.push_back(result_of(trial, root));
    candidates.push_back({{"name", row.name}, {"state", state_of(runs)}, {"runs", std::move(runs)}});
  }
  const Json baseline = candidates[0];
  const Rule rule{.is_timed = false,
                  .least = 0,
                  .claims = rows.size() - 1,                      // Bonferroni's correction
                  .overlap = folds > 1 ? 1.0 / (folds - 1) : 0};  // Nadeau and Bengio, 2003
  for (auto& candidate : candidates) {
    Json medians = Json::object(), differences = Json::object();
    for (const auto& measure : measures) {
      const auto values = values_of(candidate, measure.key);
      std::vector<double> numbers;
      for (const auto& [run, value] : values) numbers.push_back(value);
      medians[measure.key] = numbers.empty() ? Json() : json_of(median_range_of(numbers));
      differences[measure.key] = against(measure, values_of(baseline, measure.key), values, rule);
    }
    candidate["measures"] = std::move(medians);
    if (&candidate != &candidates[0]) candidate["against_baseline"] = std::move(differences);
  }
  Json comparison = {{"baseline", baseline["name"]},
                     {"confidence", confidence},
                     {"tolerance", tolerance},
                     {"metrics", std::move(better)}};
  if (folds > 0) comparison["folds"] = folds;
  if (!units.empty()) comparison["units"] = std::move(units);
  comparison["candidates"] = std::move(candidates);
  return comparison;
}

void judge_by(Json& comparison, const std::string& metric) try {
  Json all = {{"loss", "lower"}, {"validation_loss", "lower"}};
  all.update(comparison.value("metrics", Json::object()));
  std::string names;
  for (const auto& [name, better] : all.items()) names += (names.empty() ? "" : ", ") + name;
  if (!all.contains(metric)) throw Refused("--metric " + metric + ": these runs measure " + names);
  const std::string better = all[metric];
  if (better.empty()) throw Refused("--metric " + metric + ": nothing says which of its values are better");
  std::vector<std::pair<double, std::string>> order;
  for (const auto& candidate : comparison.at("candidates")) {
    const auto range = candidate.at("measures").value(metric, Json());
    if (!range.is_object()) continue;
    const double median = range.at("median");
    order.emplace_back(better == "higher" ? -median : median, candidate.at("name"));
  }
  std::ranges::stable_sort(order, {}, &std::pair<double, std::string>::first);
  Json names_in_order = Json::array();
  for (const auto& [value, name] : order) names_in_order.push_back(name);
  comparison["judged_by"] = {{"metric", metric}, {"better", better}, {"order", std::move(names_in_order)}};
} catch (const Json::exception&) {
  throw Refused("compare.json is damaged; run `vernier compare` again");
}

std::string csv_of(const Json& comparison) {
  const auto measures = measures_of(comparison.value("metrics", Json::object()));
  std::ostringstream out;
  out << "candidate,state,seeds";
  for (const auto& measure : measures) {
    const auto &key = measure.key, compared = key + (measure.is_ratio ? "_ratio" : "_difference");
    out << ',' << key << ',' << key << "_low," << key << "_high," << compared << ',' << compared << "_low," << compared
        << "_high," << compared << "_verdict";
  }
  out << '\n';
  for (const auto& candidate : comparison["candidates"]) {
    const auto& runs = candidate["runs"];
    out << csv_quoted(candidate["name"]) << ',' << csv_quoted(candidate["state"]) << ','
        << std::ranges::count_if(runs, [](const Json& run) { return has_results(run["state"]); });
    const auto differences = candidate.value("against_baseline", Json::object());
    for (const auto& measure : measures) {
      for (const auto* table : {&candidate["measures"], &differences}) {
        const auto range = table->value(measure.key, Json());
        for (const char* part : {"median", "low", "high"}) {
          out << ',' << (range.is_object() ? json_text(range[part]) : "");
        }
      }
      const auto compared = differences.value(measure.key, Json());
      out << ',' << (compared.is_object() ? compared.value("verdict", "") : "");
    }
    out << '\n';
  }
  return out.str();
}

}  // namespace vernier
