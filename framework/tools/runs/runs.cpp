// `vernier runs`: a table of the runs in a folder.
#include <unistd.h>
#include <vernier/json_text.h>

#include <algorithm>
#include <iostream>

#include "common/run_files.h"
#include "common/text/terminal.h"
#include "common/text/text_table.h"
#include "common/verb.h"

namespace {

namespace fs = std::filesystem;
using vernier::RunFiles;

constexpr const char* usage = R"(usage: vernier runs [FOLDER] [--json]

Lists the runs in FOLDER (runs) and in the folders below it, the newest last: state, steps, losses, the best
values of up to three metrics, precision, time.
"killed" is a run that nobody writes and nothing ended; `vernier train … --resume` goes on with it.

  --json   one line of JSON for each run
)";

// A run's folder has runs of its own only by accident, so nothing is looked for in it.
void collect(const fs::path& folder, int depth, std::vector<RunFiles>& runs) {
  for (const auto& entry : fs::directory_iterator(folder, fs::directory_options::skip_permission_denied)) {
    std::error_code none;
    if (!entry.is_directory(none) || entry.is_symlink(none)) continue;
    if (!vernier::is_run(entry.path())) {
      if (depth > 1) collect(entry.path(), depth - 1, runs);
      continue;
    }
    try {
      runs.push_back(vernier::read_run(entry.path()));
    } catch (const vernier::Refused& refused) {
      std::cerr << "vernier: " << refused.what() << '\n';
    }
  }
}

fs::file_time_type changed_at(const RunFiles& run) {
  std::error_code none;
  const auto history = fs::last_write_time(run.folder / "losses.jsonl", none);
  if (!none) return history;
  return fs::last_write_time(run.folder, none);
}

std::string steps_of(const RunFiles& run) {
  return std::to_string(run.step) + (run.steps > 0 ? " of " + std::to_string(run.steps) : "");
}

// The final or best loss: a run that has ended has it in its summary, and its monitors may have kept fewer steps.
std::optional<double> loss_of(const RunFiles& run, const std::string& metric, const std::string& key) {
  const bool has_ended = run.summary.is_object() && run.state != "running" && run.state != "killed";
  const auto losses = has_ended ? run.summary.value(metric, nlohmann::ordered_json()) : nlohmann::ordered_json();
  const auto value = losses.is_object() ? losses.value(key, nlohmann::ordered_json()) : nlohmann::ordered_json();
  if (value.is_number()) return value.get<double>();
  return key == "best" ? vernier::lowest(run.find(metric)) : vernier::last(run.find(metric));
}

// The best value; the last one of a run that has no summary yet, or where nobody knows which values are better.
std::optional<double> value_of(const RunFiles& run, const std::string& metric) {
  for (const auto& seen : run.metrics()) {
    if (seen.name == metric) return seen.best ? seen.best : seen.last;
  }
  return vernier::last(run.find(metric));
}

std::string shortened(const std::string& text) {
  return text.size() > 40 ? "…" + text.substr(text.size() - 39) : text;
}

void print_table(const std::vector<RunFiles>& runs, const fs::path& root) {
  constexpr std::size_t most_metrics = 3;
  auto metrics = vernier::metric_names(runs);
  if (metrics.size() > most_metrics) metrics.resize(most_metrics);
  vernier::TextRows rows = {{"run", "state", "steps", "loss", "best", "validation"}};
  rows[0].insert(rows[0].end(), metrics.begin(), metrics.end());
  rows[0].insert(rows[0].end(), {"precision", "time"});
  for (const auto& run : runs) {
    rows.push_back({shortened(fs::relative(run.folder, root).string()), run.state, steps_of(run),
                    vernier::text_of(loss_of(run, "loss", "final")), vernier::text_of(loss_of(run, "loss", "best")),
                    vernier::text_of(loss_of(run, "validation_loss", "best"))});
    for (const auto& metric : metrics) rows.back().push_back(vernier::text_of(value_of(run, metric)));
    rows.back().insert(rows.back().end(), {run.precision, vernier::duration_of(run.seconds)});
  }
  std::cout << vernier::wrapped(vernier::aligned(rows), vernier::screen_of(STDOUT_FILENO).columns, 2);
}

void print_json(const std::vector<RunFiles>& runs) {
  const auto number = [](std::optional<double> value) {
    return value ? nlohmann::ordered_json(*value) : nlohmann::ordered_json();
  };
  for (const auto& run : runs) {
    auto metrics = nlohmann::ordered_json::object();
    for (const auto& metric : run.metrics()) {
      metrics[metric.name] = {{"last", number(metric.last)}, {"best", number(metric.best)}};
    }
    std::cout << vernier::json_text(
                     nlohmann::ordered_json{{"folder", run.folder.string()},
                                            {"name", run.name},
                                            {"state", run.state},
                                            {"step", run.step},
                                            {"steps", run.steps},
                                            {"loss", number(loss_of(run, "loss", "final"))},
                                            {"best_loss", number(loss_of(run, "loss", "best"))},
                                            {"best_validation_loss", number(loss_of(run, "validation_loss", "best"))},
                                            {"metrics", std::move(metrics)},
                                            {"precision", run.precision},
                                            {"seconds", run.seconds}})
              << '\n';
  }
}

int list(const boost::program_options::variables_map& given) {
  const auto words = vernier::words_of(given);
  if (words.size() > 1) throw vernier::Refused("runs takes one folder, and " + words[1] + " is a second");
  const fs::path root = words.empty() ? "runs" : words[0];
  if (!fs::is_directory(root)) throw vernier::Refused(root.string() + ": there is no such folder; name one with runs");
  std::vector<RunFiles> runs;
  if (vernier::is_run(root)) {
    runs.push_back(vernier::read_run(root));
  } else {
    collect(root, 3, runs);
  }
  std::ranges::sort(runs, [](const auto& a, const auto& b) { return changed_at(a) < changed_at(b); });
  if (given.count("json") != 0) {
    print_json(runs);
  } else if (runs.empty()) {
    std::cout << "there is no run in " << root.string() << '\n';
  } else {
    print_table(runs, vernier::is_run(root) ? fs::path(root).parent_path() : root);
  }
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  boost::program_options::options_description known;
  known.add_options()("json", "");
  return vernier::call_verb({"runs", usage, known, list}, argc, argv);
}
