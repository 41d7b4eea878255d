#include "command.h"

#include <ATen/Parallel.h>
#include <unistd.h>
#include <vernier/foreign_code.h>
#include <vernier/fused_kernels.h>
#include <vernier/hardware.h>
#include <vernier/memory.h>
#include <vernier/missing_file.h>

#include <algorithm>
#include <cmath>
#include <csignal>
#include <iostream>

#include "common/config/plugin_folders.h"
#include "common/config/recorded_configuration.h"
#include "common/config/shorthands.h"
#include "common/log.h"
#include "common/measured_speed.h"
#include "common/own_runs.h"
#include "common/text/terminal.h"
#include "files/json.h"
#include "output/output.h"
#include "run/process/crash.h"

namespace vernier::cli {

namespace fs = std::filesystem;

namespace {

std::atomic<int> first_signal = 0;

constexpr int stopping_signals[] = {SIGINT, SIGTERM, SIGHUP, SIGUSR1};

// The first signal ends the run after the step in work, with a checkpoint. A SIGINT after it ends the process at once,
// and a line says where it was. Other signals do not, because Slurm sends SIGUSR1 and later SIGTERM.
extern "C" void remember_signal(int signal) {
  int none = 0;
  if (first_signal.compare_exchange_strong(none, signal) || signal != SIGINT) return;
  report_interrupt();
  std::signal(SIGINT, SIG_DFL);
  (void)std::raise(SIGINT);
}

}  // namespace

std::atomic<int>& stop_signal() {
  return first_signal;
}

void listen_for_signals() {
  for (const int signal : stopping_signals) std::signal(signal, remember_signal);
  std::signal(SIGPIPE, SIG_IGN);  // `vernier train … | head` loses the lines, not the run
}

Host make_host(const po::variables_map& given, const std::vector<std::string>& files) {
  if (given.count("trust") != 0) trust_runs();
  return Host(plugin_folders(words_in(given, "plugin-path"), "--plugin-path ", files));
}

bool wants_to_resume(const po::variables_map& given) {
  return given.count("resume") != 0 || given.count("resume-newest") != 0;
}

Level log_level(const po::variables_map& given) {
  if (given.count("quiet") != 0) return Level::warning;
  return given.count("debug") != 0 ? Level::debug : Level::info;
}

namespace {

// The TOML files of the command; without any, the configuration of the run that it resumes.
std::vector<std::string> files_of(const po::variables_map& given) {
  auto files = words_of(given);
  if (files.empty() && given.count("resume") != 0) files = {configuration_at(given["resume"].as<std::string>())};
  return files;
}

}  // namespace

Table merged_config(const po::variables_map& given) {
  const auto files = files_of(given);
  if (files.empty()) {
    refuse("name a TOML file, as in `vernier " + given["verb"].as<std::string>() + " configs/quickstart.toml`");
  }
  auto sets = words_in(given, "set");
  const auto more = sets_of_shorthands(given, sets, merge_config(files, {}).count(Scaler::role) != 0);
  sets.insert(sets.end(), more.begin(), more.end());
  return load_config(files, sets);
}

std::unique_ptr<Prepared> prepare(const po::variables_map& given, const std::function<void(Table&)>& change) {
  auto config = merged_config(given);
  if (change) change(config);
  const auto host = make_host(given, words_of(given));
  const bool is_of_run = words_of(given).empty();  // the configuration is that of the run that is resumed
  const ForeignRun others(is_of_run ? foreign(given["resume"].as<std::string>()) : "");
  if (given.count("low-memory") != 0) config = with_low_memory(std::move(config), host);
  const auto resumes = [&](const Wiring& wiring, const RunOptions& options, const std::string& output) {
    if (wiring.distributed->rank() > 0) {  // rank 0 speaks for all
      std::cout.setstate(std::ios::failbit);
      set_log_level(static_cast<int>(Level::error));
    }
    const bool is_auto = options.resume == "auto", is_asked = wants_to_resume(given);
    if (given.count("trust") != 0 && !is_auto && !is_asked)
      refuse("--trust is for runs, and none is read; leave it out");
    return is_asked || (is_auto && OutputFolder::is_there(output, *wiring.checkpoint));
  };
  const fs::path first = files_of(given).front();
  return vernier::prepare(std::move(config), first.stem().string(), host, first_signal, resumes);
}

std::string steps_text(std::int64_t steps) {
  return c10::str(steps, steps == 1 ? " step" : " steps");
}

void print_text(const std::string& text, std::size_t indent) {
  std::cout << wrapped(text, screen_of(STDOUT_FILENO).columns, indent);
}

// Prints the plugins. Options that do not fit into a plugin's line continue below its first option.
void print_table(const Wiring& wiring) {
  constexpr std::size_t options_begin = 29;
  print_text(wiring.table(), options_begin);
}

void print_wiring(const Prepared& prepared, const std::string& compare) {
  const Run& run = prepared.run;
  std::int64_t elements = 0;
  for (const auto& parameter : run.parameters) elements += parameter.model.numel();
  print_text(c10::str("run ", run.name, ": ", steps_text(run.steps), " on ", run.device, ", ", at::get_num_threads(),
                      at::get_num_threads() == 1 ? " thread, " : " threads, ", elements, " parameters",
                      prepared.options.undo_failed_steps ? "\n" : "; a step that fails is not undone\n"));
  print_table(*prepared.wiring);
  if (run.device.is_cpu()) {
    print_text(c10::str("  kernels       matmul=", matmul_path(), " (", prepared.matmul.reason,
                        ") fused=", fused_kernels() ? "true\n" : "false\n"));
  }
  const auto& precision = *prepared.wiring->precision;
  const auto& scaler = *prepared.wiring->scaler;
  const auto what = precision.describe();
  print_text("[AMP] " + precision.id() + (what.empty() ? "" : ": ") + what + "\n[AMP] " +
             (scaler.scales() ? "the loss is scaled by " + scaler.id() : "the loss is not scaled") + "; " +
             hardware_of(run.device.type()).can() + '\n');
  const auto saved = run.amp.avg_memory_savings();
  if (!saved && !precision.is_mixed()) return;
  auto speed =
      measured_speed({.output = run.output,
                      .configuration = OrderedJson::parse(resolved_configuration(prepared.run_table, *prepared.wiring)),
                      .device = run.device.str(),
                      .threads = at::get_num_threads()});
  if (speed.empty()) {
    speed = "speed unknown, " + (compare.empty()
                                     ? "vernier compare measures it"
                                     : "this measures it: " + compare + " --sweep precision=" + Precision::standard +
                                           "," + use_of(prepared.wiring->table_of(precision)));
  }
  print_text(
      "[AMP] expected: " +
      (saved ? c10::str("a step takes ", memory_text(std::llround(std::abs(*saved) * 1e9)),
                        *saved < 0 ? " more" : " less", " than in float32 with the same other options, as measured")
             : "memory unknown, [run] measure_savings = true measures it") +
      "; " + speed + '\n');
}

}  // namespace vernier::cli
