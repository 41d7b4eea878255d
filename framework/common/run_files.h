// The files of a run, for programs that only look. They can be read while the run writes them, and after a kill.
#pragma once

#include <filesystem>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <span>
#include <stdexcept>
#include <string>
#include <vector>

namespace vernier {

struct Refused : std::runtime_error {
  using std::runtime_error::runtime_error;
};

struct Point {
  std::int64_t step;
  double value;  // may be inf or NaN
};
struct Series {
  std::string name;  // "loss", "validation_loss", "grad_norm", …
  std::vector<Point> points;
};
// A metric of the validations, but the loss, as summary.json has it. best: where it is known which values are better.
struct MetricSeen {
  std::string name;
  std::optional<double> last, best;
  std::string better;  // "higher", "lower" or ""
};
struct NoticeSeen {
  std::int64_t step;
  std::string name, details;  // details: "reason=gradients not finite"
};

struct RunFiles {
  std::filesystem::path folder;
  std::string name;
  std::string state;  // "running"; how it ended, as summary.json says it; "killed" where nothing ended it
  std::string precision;
  std::int64_t step = 0, steps = 0;  // done and planned; steps is 0 where the files do not say
  double seconds = 0;                // from the start of the newest process to its last line
  std::vector<Series> series;        // in the order in which losses.jsonl has them
  std::vector<NoticeSeen> notices;
  nlohmann::ordered_json summary;  // null before the run has ended once

  const Series* find(const std::string& metric) const;  // null if no step has the metric
  std::vector<MetricSeen> metrics() const;              // the metrics in the summary
  // The unit that a plugin declared for its metric, by the summary; "" for a plain number or ratio, and if none did.
  std::string unit_of(const std::string& metric) const;
};

bool is_run(const std::filesystem::path& folder);

// Reads config.toml, losses.jsonl, summary.json and the lock. A last line that is not whole yet is left out. Throws
// Refused where the folder is none of a run, or a file of it is damaged.
RunFiles read_run(const std::filesystem::path& folder);

// A configuration as one list of values: "task.use": "mlp". Callbacks and monitors go by their names:
// "callback.clip_norm.max_norm", and those of a second one "callback.clip_norm#2.max_norm".
std::map<std::string, std::string> flat_configuration(const nlohmann::ordered_json& configuration);

// The names of the metrics of all runs, each once.
std::vector<std::string> metric_names(const std::vector<RunFiles>& runs);

// The metric with its unit, "latency (ms)", as the runs declare it.
std::string with_unit(const std::string& metric, std::span<const RunFiles> runs);

// Said of a run without series.
constexpr const char* no_curve = "no curve: the run wrote no losses; add [[monitor]] use = \"jsonl\"";

// The lowest value that is a number, and the last of all.
std::optional<double> lowest(const Series* series);
std::optional<double> last(const Series* series);

std::string text_of(std::optional<double> value);  // "3.218", "nan"; "" if there is none
std::string duration_of(double seconds);           // "12 s", "3 min 20 s", "5 h 02 min"

}  // namespace vernier
