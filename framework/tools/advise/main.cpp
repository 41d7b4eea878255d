// `vernier advise`: measures real steps of a configuration's variants on this machine, and says which one to use.
#include <vernier/json_in.h>
#include <vernier/json_text.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iostream>
#include <sstream>

#include "advice.h"
#include "common/output_file.h"
#include "common/run_files.h"
#include "common/scratch_folder.h"
#include "common/text/quoting.h"
#include "common/trials.h"
#include "common/verb.h"

namespace {

namespace fs = std::filesystem;
namespace po = boost::program_options;
using namespace vernier;
using Json = nlohmann::ordered_json;
using Words = std::vector<std::string>;

constexpr const char* usage = R"(usage: vernier advise FILE... [OPTION]...

Trains the configuration for a few steps in each precision, matrix kernel and number of micro-batches that this machine
and these plugins have, and in the best combinations of these. Prints which one to use, with the speed, the memory and
the loss that were measured, and writes it as an overlay.

  --memory AMOUNT      the most that the process may take (of a GPU: its tensors there), as 8G or 500MB; measures also
                       what only saves memory: recomputation, the optimizer's state, Kahan summation
  --batch SAMPLES      task.batch_size of all candidates, and of the overlay
  --seconds NUMBER     for the measurements together; 60, if not given
  --loss-gap SHARE     how far a candidate's loss may be above float32's, as a share of its first loss; 0.01
  --set KEY=VALUE      sets one value in all candidates; may be repeated
  --plugin-path FOLDER as of vernier train
  --output FILE        of the overlay; advice.toml, if not given; a file that is there is kept
  --force              replaces a file that is there
  --json               prints the advice and all that was measured as JSON
  --quiet              prints no line for each measurement
)";

constexpr int nothing_advised = 4;

// "8G", "8GB", "7.5GiB", "500MB".
double bytes_in(const std::string& text) {
  char* end = nullptr;
  const double number = std::strtod(text.c_str(), &end);
  const std::string unit(end);
  const std::pair<const char*, double> units[] = {{"M", 1e6},  {"MB", 1e6},     {"MiB", 0x1p20}, {"G", 1e9},
                                                  {"GB", 1e9}, {"GiB", 0x1p30}, {"", 1},         {"B", 1}};
  for (const auto& [name, factor] : units) {
    if (unit == name && std::isfinite(number) && number * factor >= 1) return number * factor;
  }
  throw Refused("--memory " + text + ": write an amount, as in --memory 8G or --memory 500MB");
}

struct AdviseOptions {
  Common common;
  Advice advice;  // inputs that the command gives
  double seconds = 60;
  std::string output;
  bool is_quiet = false;
};

AdviseOptions read_options(const po::variables_map& given) {
  AdviseOptions options;
  options.advice.files = words_of(given);
  if (options.advice.files.empty())
    throw Refused("name a TOML file, as in `vernier advise run.toml`; see vernier advise --help");
  options.advice.sets = options.common.sets = words_in(given, "set");
  if (given.count("batch") != 0) {
    const auto batch = static_cast<std::int64_t>(number_in(given, "batch", 1.0, 1e9));
    options.advice.always.push_back({"task.batch_size", std::to_string(batch)});
    options.common.sets.push_back("task.batch_size=" + std::to_string(batch));
  }
  options.advice.plugin_paths = options.common.plugin_paths = words_in(given, "plugin-path");
  if (given.count("memory") != 0) options.advice.limits.memory = bytes_in(given["memory"].as<std::string>());
  options.advice.limits.loss_gap = number_in(given, "loss-gap", 0.0, 1.0);
  options.seconds = number_in(given, "seconds", 1.0, 1e6);
  options.output = given["output"].as<std::string>();
  options.is_quiet = given.count("quiet") != 0;
  refuse_output(given, options.output);
  return options;
}

bool is_amd() {
  std::ifstream file("/proc/cpuinfo");
  for (std::string line; std::getline(file, line);) {
    if (line.find("AuthenticAMD") != std::string::npos) return true;
  }
  return false;
}

constexpr std::size_t slow_steps = 3;  // the first ones, if there are four times as many

// Results of a short run besides those by which a candidate is judged.
struct ShortRun {
  Measured measured;  // without a choice
  std::string device;
  std::int64_t threads = 0;
  double seconds = 0;        // duration of the whole process
  double steps_seconds = 0;  // duration of its steps
};

std::vector<std::string> cells_of(const std::string& line) {
  std::vector<std::string> cells;
  std::istringstream parts(line);
  for (std::string cell; std::getline(parts, cell, ',');) cells.push_back(cell);
  return cells;
}

double number_at(const Json& summary, const char* path) {
  const auto value = value_at(summary, path);
  return value.is_number() ? value.get<double>() : 0;
}

void read_summary(const Json& summary, ShortRun& run) {
  auto& measured = run.measured;
  run.device = summary.value("device", "");
  run.threads = summary.value("threads", std::int64_t{0});
  run.steps_seconds = number_at(summary, "/this_process/seconds");
  measured.steps = static_cast<std::int64_t>(number_at(summary, "/this_process/steps"));
  measured.peak_memory = number_at(summary, "/this_process/peak_memory_bytes");
  measured.overflows = static_cast<std::int64_t>(number_at(summary, "/amp/overflow_count"));
  measured.skipped = static_cast<std::int64_t>(number_at(summary, "/updates_skipped"));
  measured.emulated = summary.value(Json::json_pointer("/this_process/emulated"), "");
  const auto parts = number_at(summary, "/this_process/per_update/micro_batches");
  measured.micro_batch = parts > 0 ? number_at(summary, "/this_process/per_update/samples") / parts : 0;
  if (summary.contains("error") && summary["error"].is_string()) measured.trouble = summary["error"];
  if (measured.speeds.empty() || measured.speeds.front() == 0) {
    measured.speeds = {number_at(summary, "/this_process/samples_per_second")};
  }
}

// The numbers of metrics.csv, as monitor/csv writes it.
struct StepNumbers {
  std::vector<double> speeds, losses;  // one number for each step that has it
};
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

// The median of the speeds, without those of the first steps, which are slow. 0 if there is none.
double speed_of(std::vector<double> speeds) {
  if (speeds.empty()) return 0;
  const auto first = std::min(slow_steps, speeds.size() / 4);
  speeds.erase(speeds.begin(), speeds.begin() + static_cast<std::ptrdiff_t>(first));
  const auto middle = speeds.begin() + static_cast<std::ptrdiff_t>(speeds.size() / 2);
  std::ranges::nth_element(speeds, middle);
  return *middle;
}

// Trains for so many seconds from the start of the training, the reading of the data included; one step at least. The
// run keeps no checkpoint, has no monitors but monitor/csv, and leaves nothing in the folder.
ShortRun train_for(int seconds, const Common& common, const Candidate& candidate, const fs::path& folder,
                   Children& children) {
  const auto begin = std::chrono::steady_clock::now();
  auto words = command_of("train", common, candidate);
  // The name that is set first replaces a table whose options, such as `every`, checkpoint/none does not take.
  words.insert(words.end(), {"--quiet", "--set=checkpoint.use=rolling",
                             "--set=run.output=" + toml_quoted(folder.string()), "--set=run.resume=never",
                             "--set=run.requeue=false", "--set=run.time_limit=" + std::to_string(seconds) + "s",
                             "--set=checkpoint={use = \"none\"}", "--set=monitor=[]", "--set=monitor.csv.every=1"});
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

// Measures, and keeps count of the time.
class Adviser {
 public:
  Adviser(const AdviseOptions& options, Children& children) : options_(options), children_(children) {}

  Advice advise() {
    AxisInputs inputs;
    inputs.written = toml::parse(merged_configuration(options_.common, candidate({}), children_));
    const auto written = measure_written();
    if (children_.stopped_by() != 0) return {};
    if (!written.measured.trouble.empty()) {
      throw Refused("the configuration does not train as it is written: " + written.measured.trouble);
    }
    inputs.is_on_cpu = written.device.starts_with("cpu");
    inputs.is_amd = is_amd();
    inputs.saves_memory = options_.advice.limits.memory > 0;
    const auto id_in = [&](const std::string& role) {
      return role + "/" + inputs.written[role]["use"].value_or(std::string());
    };
    inputs.run = declared_by("run");
    inputs.task = declared_by(id_in("task"));
    inputs.optimizer = declared_by(id_in("optimizer"));
    auto advice = options_.advice;
    advice.axes = axes_of(inputs);
    auto first = written.measured;
    first.choice = as_written(advice.axes);
    const auto measure = [&](Measured& measured) { measure_once_more(advice.axes, measured); };
    const auto has_time = [&](std::size_t rounds) { return has_time_for(rounds); };
    advice.found = search(advice.axes, std::move(first), options_.advice.limits, measure, has_time);
    advice.seconds = seconds_gone();
    advice.device = written.device;
    advice.threads = written.threads;
    if (const auto* measured = chosen(advice)) advice.checks = checks_of(advice.axes, measured->choice);
    return advice;
  }

 private:
  Candidate candidate(const std::vector<Setting>& settings) const {
    Candidate candidate{"", options_.advice.files, {}};
    for (const auto& [key, value] : settings) candidate.sets.push_back(key + "=" + value);
    return candidate;
  }

  // The first run shows how long the others must be: the reading of the data counts into a run's time, too.
  ShortRun measure_written() {
    constexpr double loading = 0.3;  // seconds of LibTorch, at least; they do not count
    constexpr std::size_t wanted_steps = 8;
    const double share = options_.seconds / 60;
    const auto train = [&](int seconds) {
      auto run = train_for(seconds, options_.common, candidate({}), scratch_.path() + "/run", children_);
      print("as written", run.measured);
      return run;
    };
    auto run = train(static_cast<int>(std::ceil(1 + share)));
    const double before = std::max(0.0, run.seconds - run.steps_seconds - loading);
    const double step = run.steps_seconds / static_cast<double>(std::max<std::int64_t>(1, run.measured.steps));
    round_ = static_cast<int>(std::ceil(before + std::max(share, static_cast<double>(wanted_steps) * step)));
    const bool has_few = run.measured.trouble.empty() && run.measured.losses.size() < wanted_steps;
    if (has_few && children_.stopped_by() == 0) run = train(round_);
    costs_ = run.seconds;
    return run;
  }

  void measure_once_more(const std::vector<Axis>& axes, Measured& measured) {
    const bool is_first = measured.speeds.empty();
    const auto run = train_for(round_, options_.common, candidate(settings_of(axes, measured.choice)),
                               scratch_.path() + "/run", children_);
    if (children_.stopped_by() != 0) return;
    costs_ = std::max(costs_, std::min(run.seconds, round_ + 2.0));
    auto now = run.measured;
    print(name_of(axes, measured.choice), now);
    if (is_first) {
      now.choice = measured.choice;
      measured = std::move(now);
      return;
    }
    if (!now.trouble.empty()) measured.trouble = now.trouble;
    measured.speeds.insert(measured.speeds.end(), now.speeds.begin(), now.speeds.end());
    measured.peak_memory = std::max(measured.peak_memory, now.peak_memory);
    measured.steps += now.steps;
    measured.overflows += now.overflows;
    measured.skipped += now.skipped;
  }

  void print(const std::string& name, const Measured& now) const {
    if (options_.is_quiet || children_.stopped_by() != 0) return;
    std::cerr << duration_of(seconds_gone()) << "  " << name << ": ";
    if (!now.trouble.empty()) {
      std::cerr << now.trouble << '\n';
    } else {
      std::cerr << text_of(now.speed()) << " samples/s, " << text_of(std::round(now.peak_memory / 1e6)) << " MB\n";
    }
  }

  DeclaredOptions declared_by(const std::string& id) {
    Words words = {"config", "--schema", id};
    for (const auto& path : options_.common.plugin_paths) words.push_back("--plugin-path=" + path);
    const auto ended = children_.run(words);
    return ended.status == 0 ? declared_in(nlohmann::json::parse(ended.out).at(id)) : DeclaredOptions{};
  }

  Words checks_of(const std::vector<Axis>& axes, const Choice& choice) {
    if (children_.stopped_by() != 0) return {};
    auto words = command_of("check", options_.common, candidate(settings_of(axes, choice)));
    words.emplace_back("--advice");
    const auto ended = children_.run(words);
    if (ended.status != 0) return {"vernier check: " + reason_of(ended)};
    std::istringstream lines(ended.out);
    Words advice;
    for (std::string line; std::getline(lines, line);) advice.push_back(line);
    return advice;
  }

  double seconds_gone() const {
    return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin_).count();
  }
  bool has_time_for(std::size_t rounds) {
    return children_.stopped_by() == 0 && seconds_gone() + costs_ * static_cast<double>(rounds) <= options_.seconds;
  }

  const AdviseOptions& options_;
  Children& children_;
  const ScratchFolder scratch_;
  const std::chrono::steady_clock::time_point begin_ = std::chrono::steady_clock::now();
  int round_ = 1;     // seconds of a run's training
  double costs_ = 0;  // seconds of a run, from its start to its end
};

int advise(const po::variables_map& given) {
  const auto options = read_options(given);
  Children children(program_beside_this());
  const auto advice = Adviser(options, children).advise();
  if (const int signal = children.stopped_by(); signal != 0) {
    std::cerr << "vernier: stopped before the measurements were complete; nothing is advised\n";
    return 128 + signal;
  }
  const bool as_json = given.count("json") != 0;
  std::cout << (as_json ? json_text(json_of(advice), 2) + "\n" : text_of(advice)) << std::flush;
  if (chosen(advice) == nullptr) return nothing_advised;
  if (!write_or_complain(options.output, overlay_file(advice, options.output))) return nothing_advised;
  if (!as_json) std::cout << "\nwrote " << options.output << std::endl;
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  const auto words = [] { return po::value<Words>()->composing(); };
  po::options_description known;
  known.add_options()("memory", po::value<std::string>())("batch", po::value<double>())(
      "seconds", po::value<double>()->default_value(60))("loss-gap", po::value<double>()->default_value(0.01))(
      "set", words(), "")("plugin-path", words(), "")("output", po::value<std::string>()->default_value("advice.toml"))(
      "force", "")("json", "")("quiet", "");
  return call_verb({"advise", usage, known, advise}, argc, argv);
}
