#include "run_files.h"

#include <vernier/error.h>
#include <vernier/json_in.h>

#include <fcntl.h>
#include <sys/file.h>
#include <unistd.h>

#include <toml++/toml.h>
#include <algorithm>
#include <cmath>
#include <fstream>
#include <limits>

#include "common/text/numbers.h"
#include "common/toml_depth.h"

namespace vernier {

namespace fs = std::filesystem;
using Json = nlohmann::ordered_json;

namespace {

constexpr const char* history = "losses.jsonl";

// The types of what is read from a run's files, which may be a stranger's: each value has that of the value here. "*"
// is every name.
const Json form_of_line = Json::parse(R"({"step": 0, "notices": [{"step": 0, "name": ""}]})");
const Json form_of_status = Json::parse(R"({"precision": ""})");
const Json form_of_summary = Json::parse(R"({"ended_by": "", "steps": 0, "error": "", "loss": {}, "validation_loss": {},
  "amp": {}, "versions": {}, "this_process": {"times": {}}, "configuration": {"task": {"use": ""}},
  "validation": {"*": {"better": ""}}, "metrics": {"*": {"unit": ""}}})");

bool has_form(const Json& value, const Json& form) {
  if (form.is_string()) return value.is_string();
  if (!form.is_structured()) return value.is_number_integer();
  if (value.type() != form.type()) return false;
  if (form.is_array()) return std::ranges::all_of(value, [&](const Json& each) { return has_form(each, form[0]); });
  for (const auto& [name, part] : form.items()) {
    for (const auto& [key, each] : value.items()) {
      if ((name == key || name == "*") && !has_form(each, part)) return false;
    }
  }
  return true;
}

// JSON has no infinities: they are written as text.
std::optional<double> number_in(const Json& value) {
  if (value.is_number()) return value.get<double>();
  if (value == "inf") return std::numeric_limits<double>::infinity();
  if (value == "-inf") return -std::numeric_limits<double>::infinity();
  if (value == "nan") return std::numeric_limits<double>::quiet_NaN();
  return std::nullopt;
}

// The process that writes a run holds a lock on this file.
bool is_locked(const fs::path& folder) {
  const int file = ::open((folder / ".lock").c_str(), O_RDONLY | O_CLOEXEC);
  if (file < 0) return false;
  const bool is_held = ::flock(file, LOCK_SH | LOCK_NB) != 0;
  ::close(file);
  return is_held;
}

void add_notices(const Json& line, std::int64_t step, RunFiles& run) {
  for (const auto& notice : line.value("notices", Json::array())) {
    std::string details;
    for (const auto& [key, value] : notice.items()) {
      if (key == "name" || key == "step") continue;
      const auto text = value.is_string() ? value.get<std::string>() : json_text(value);
      details += (details.empty() ? "" : ", ") + key + "=" + text;
    }
    run.notices.push_back({notice.value("step", step), printable(notice.value("name", "")), printable(details)});
  }
}

void add_line(const Json& line, RunFiles& run) {
  const auto step = line.value("step", std::int64_t{0});
  run.step = std::max(run.step, step);
  add_notices(line, step, run);
  for (const auto& [key, value] : line.items()) {
    const auto number = number_in(value);
    if (key == "step" || key == "updates" || !number) continue;
    const auto name = printable(key);
    auto found = std::ranges::find(run.series, name, &Series::name);
    if (found == run.series.end()) found = run.series.insert(found, {name, {}});
    found->points.push_back({step, *number});
  }
}

void read_history(RunFiles& run) {
  std::ifstream file(run.folder / history);
  int number = 0;
  for (std::string text; std::getline(file, text);) {
    ++number;
    if (file.eof()) return;  // half of a line
    const auto line = json_in<Json>(text);
    if (!has_form(line, form_of_line)) {
      throw Refused((run.folder / history).string() + ":" + std::to_string(number) +
                    ": this line is not one that a run writes; remove it to see the rest of the run");
    }
    add_line(line, run);
  }
}

void read_summary(RunFiles& run) {
  std::ifstream file(run.folder / "summary.json");
  if (!file) return;
  run.summary = json_in<Json>(file);
  if (!has_form(run.summary, form_of_summary)) {
    throw Refused((run.folder / "summary.json").string() + ": it is damaged; remove it to see the rest of the run");
  }
  if (auto found = run.summary.find("error"); found != run.summary.end())
    *found = printable(found->get<std::string>(), "\n");
}

void read_config(RunFiles& run) {
  const auto path = run.folder / "config.toml";
  if (!fs::exists(path)) return;
  const auto config = toml::parse(shallow_toml(path));
  run.name = printable(config["run"]["name"].value_or(run.name));
  run.steps = config["run"]["steps"].value_or(std::int64_t{0});
  if (config["run"]["epochs"].value_or(std::int64_t{0}) > 0) run.steps = 0;  // counted once the data is there
  run.precision = printable(config["precision"]["use"].value_or(std::string("fp32")));
}

// status.json has the precision in force since the last step in which it changed. Before the first step it is that of
// config.toml.
void read_status(RunFiles& run) {
  std::ifstream file(run.folder / "status.json");
  const auto status = json_in<Json>(file);
  if (!has_form(status, form_of_status)) return;
  const auto id = status.value("precision", "");
  const auto dtype = status.value("dtype", Json());
  const std::map<Json, std::string> names = {{"bfloat16", "bf16"}, {"float16", "fp16"}, {"float32", "fp32"}};
  const auto name = printable(id.substr(id.find('/') + 1)), in_force = names.contains(dtype) ? names.at(dtype) : name;
  run.precision = in_force == name ? name : in_force + " (" + name + ")";
}

void flatten(const Json& value, const std::string& path, std::map<std::string, std::string>& out) {
  const bool has_parts =
      (value.is_object() || value.is_array()) && !value.empty() && (value.is_object() || value[0].is_object());
  if (!has_parts) {
    out[path] = value.is_string() ? value.get<std::string>() : json_text(value);
    return;
  }
  std::size_t index = 0;
  std::map<std::string, int> seen;
  for (const auto& [key, part] : value.items()) {
    const bool is_named = value.is_array() && part.is_object() && part.contains("use") && part["use"].is_string();
    auto name = is_named ? part["use"].get<std::string>() : value.is_array() ? std::to_string(index) : key;
    if (const int number = ++seen[name]; number > 1) name += "#" + std::to_string(number);
    flatten(part, path.empty() ? name : path + "." + name, out);
    ++index;
  }
}

double seconds_between(const fs::path& first, const fs::path& last) {
  std::error_code none;
  const auto begin = fs::last_write_time(first, none), end = fs::last_write_time(last, none);
  return none ? 0 : std::max(0.0, std::chrono::duration<double>(end - begin).count());
}

}  // namespace

const Series* RunFiles::find(const std::string& metric) const {
  const auto found = std::ranges::find(series, metric, &Series::name);
  return found == series.end() ? nullptr : &*found;
}

std::vector<MetricSeen> RunFiles::metrics() const {
  std::vector<MetricSeen> all;
  if (!summary.is_object() || !summary.contains("validation")) return all;
  for (const auto& [metric, values] : summary["validation"].items()) {
    all.push_back({printable(metric), number_in(values.value("final", Json())), number_in(values.value("best", Json())),
                   values.value("better", "")});
  }
  return all;
}

std::string RunFiles::unit_of(const std::string& metric) const {
  const auto declared = summary.is_object() ? summary.value("metrics", Json::object()) : Json::object();
  const auto found = declared.find(declared.contains(metric) ? metric : metric.substr(0, metric.find('/')));
  const auto unit = found == declared.end() ? "" : found->value("unit", "");
  return unit == "ratio" ? "" : unit;
}

bool is_run(const fs::path& folder) {
  std::error_code none;
  return fs::exists(folder / "summary.json", none) || fs::exists(folder / history, none) ||
         (fs::exists(folder / "config.toml", none) && fs::exists(folder / ".lock", none));
}

RunFiles read_run(const fs::path& folder) {
  std::error_code none;
  if (!fs::is_directory(folder, none))
    throw Refused(folder.string() + ": there is no such folder; `vernier runs` lists the runs that are there");
  if (!is_run(folder)) {
    throw Refused(folder.string() + ": this is not a folder of a run: it has neither summary.json nor " + history);
  }
  RunFiles run;
  run.folder = folder;
  const auto whole = fs::absolute(folder).lexically_normal();
  run.name = (whole.has_filename() ? whole : whole.parent_path()).filename().string();
  try {
    read_config(run);
  } catch (const toml::parse_error& error) {
    throw Refused((folder / "config.toml").string() + ": " + std::string(error.description()));
  }
  read_status(run);
  read_history(run);
  read_summary(run);
  const bool is_running = is_locked(folder);
  if (run.summary.is_object() && !is_running) {
    run.state = printable(run.summary.value("ended_by", ""));
    run.step = run.summary.value("steps", run.step);
    const auto seen = fs::exists(folder / "config.toml", none) ? "config.toml" : history;
    run.seconds = seconds_between(folder / seen, folder / "summary.json");
  } else {
    run.state = is_running ? "running" : "killed";
    run.seconds = seconds_between(folder / "config.toml", folder / history);
  }
  return run;
}

std::map<std::string, std::string> flat_configuration(const Json& configuration) {
  std::map<std::string, std::string> all;
  if (configuration.is_object() && !configuration.empty()) flatten(configuration, "", all);
  return all;
}

std::vector<std::string> metric_names(const std::vector<RunFiles>& runs) {
  std::vector<std::string> names;
  for (const auto& run : runs) {
    for (const auto& metric : run.metrics()) {
      if (std::ranges::find(names, metric.name) == names.end()) names.push_back(metric.name);
    }
  }
  return names;
}

std::string with_unit(const std::string& metric, std::span<const RunFiles> runs) {
  for (const auto& run : runs) {
    if (const auto unit = run.unit_of(metric); !unit.empty()) return metric + " (" + unit + ")";
  }
  return metric;
}

std::optional<double> lowest(const Series* series) {
  std::optional<double> found;
  for (const auto& point : series != nullptr ? series->points : std::vector<Point>{}) {
    if (std::isfinite(point.value) && (!found || point.value < *found)) found = point.value;
  }
  return found;
}

std::optional<double> last(const Series* series) {
  return series != nullptr && !series->points.empty() ? std::optional(series->points.back().value) : std::nullopt;
}

std::string text_of(std::optional<double> value) {
  return value ? print_number("%.5g", *value) : "";
}

std::string duration_of(double seconds) {
  const auto whole = std::llround(seconds);
  if (whole < 60) return printed("%lld s", whole);
  if (whole < 3600) return printed("%lld min %02lld s", whole / 60, whole % 60);
  return printed("%lld h %02lld min", whole / 3600, whole / 60 % 60);
}

}  // namespace vernier
