#include "short_run.h"

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <fstream>
#include <sstream>

#include "tools/common/run_files.h"

namespace vernier {

namespace fs = std::filesystem;
using Json = nlohmann::ordered_json;

namespace {

constexpr std::size_t slow_steps = 3;  // the first ones, if there are four times as many

std::vector<std::string> cells_of(const std::string& line) {
  std::vector<std::string> cells;
  std::istringstream parts(line);
  for (std::string cell; std::getline(parts, cell, ',');) cells.push_back(cell);
  return cells;
}

double number_at(const Json& summary, const char* path) {
  const auto value = summary.value(Json::json_pointer(path), Json());
  return value.is_number() ? value.get<double>() : 0;
}

void read_summary(const Json& summary, ShortRun& run) {
  auto& measured = run.measured;
  run.device = summary.value("device", "");
  run.threads = summary.value("threads", std::int64_t{0});
  run.steps_seconds = number_at(summary, "/this_process/seconds");
  measured.steps = static_cast<std::int64_t>(number_at(summary, "/this_process/steps"));
  measured.peak_memory = number_at(summary, "/this_process/peak_memory_bytes");
  measured.overflows = static_cast<std::int64_t>(number_at(summary, "/amp/overflows"));
  measured.skipped = static_cast<std::int64_t>(number_at(summary, "/updates_skipped"));
  measured.emulated = summary.value(Json::json_pointer("/this_process/emulated"), "");
  const auto parts = number_at(summary, "/this_process/per_update/micro_batches");
  measured.micro_batch = parts > 0 ? number_at(summary, "/this_process/per_update/samples") / parts : 0;
  if (summary.contains("error") && summary["error"].is_string()) measured.trouble = summary["error"];
  if (measured.speeds.empty() || measured.speeds.front() == 0) {
    measured.speeds = {number_at(summary, "/this_process/samples_per_second")};
  }
}

}  // namespace

StepNumbers read_table(const fs::path& csv) {
  std::ifstream file(csv);
  std::string line;
  std::getline(file, line);
  const auto names = cells_of(line);
  const auto column_of = [&](const char* name) {
    return static_cast<std::size_t>(std::ranges::find(names, name) - names.begin());
  };
  const auto loss = column_of("loss"), speed = column_of("samples_per_second");
  StepNumbers table;
  const auto add = [](const std::vector<std::string>& cells, std::size_t column, std::vector<double>& to) {
    if (column < cells.size() && !cells[column].empty()) to.push_back(std::strtod(cells[column].c_str(), nullptr));
  };
  while (std::getline(file, line)) {
    const auto cells = cells_of(line);
    add(cells, loss, table.losses);
    add(cells, speed, table.speeds);
  }
  return table;
}

double speed_of(std::vector<double> speeds) {
  if (speeds.empty()) return 0;
  const auto first = std::min(slow_steps, speeds.size() / 4);
  speeds.erase(speeds.begin(), speeds.begin() + static_cast<std::ptrdiff_t>(first));
  const auto middle = speeds.begin() + static_cast<std::ptrdiff_t>(speeds.size() / 2);
  std::ranges::nth_element(speeds, middle);
  return *middle;
}

ShortRun train_for(int seconds, const Common& common, const Candidate& candidate, const fs::path& folder,
                   Children& children) {
  const auto begin = std::chrono::steady_clock::now();
  auto words = command_of("train", common, candidate);
  words.insert(words.end(), {"--quiet", "--set=run.output=\"" + folder.string() + "\"", "--set=run.resume=never",
                             "--set=run.requeue=false", "--set=run.time_limit=" + std::to_string(seconds) + "s",
                             "--set=checkpoint.use=none", "--set=monitor=[]", "--set=monitor.csv.every=1"});
  const auto ended = children.run(words);
  ShortRun run;
  run.seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
  const auto table = read_table(folder / "metrics.csv");
  run.measured.speeds = {speed_of(table.speeds)};
  run.measured.losses = table.losses;
  if (fs::exists(folder / "summary.json")) read_summary(read_run(folder).summary, run);
  if (!is_whole(ended) || run.measured.steps == 0) {
    run.measured.trouble = (is_refusal(ended) ? "refused: " : "failed: ") + reason_of(ended);
    run.measured.speeds.clear();
  }
  fs::remove_all(folder);
  return run;
}

}  // namespace vernier
