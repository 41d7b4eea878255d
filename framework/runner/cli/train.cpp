// `vernier train`.
#include <vernier/error.h>
#include <vernier/hardware.h>
#include <vernier/host.h>

#include <algorithm>
#include <csignal>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iostream>

#include "command.h"
#include "common/child.h"
#include "common/config/config.h"
#include "common/config/plugin_folders.h"
#include "common/config/shorthands.h"
#include "common/log.h"
#include "common/text/numbers.h"
#include "common/text/quoting.h"
#include "output/output.h"
#include "output/recorded_run.h"
#include "output/status.h"
#include "run/process/crash.h"
#include "run/training_loop.h"

namespace vernier::cli {

namespace fs = std::filesystem;

namespace {

constexpr int diverged = 5, out_of_time = 124;  // exit statuses; for those of an error see Error::Kind

// How a training is started again: `vernier launch` says how it was called.
std::string trained_as() {
  const char* launched = std::getenv("VERNIER_LAUNCHED_AS");
  return launched != nullptr ? launched : called_as() + " train";
}

// Returns each use of an option as it was typed, " --plugin-path build/plugins", except those that set a key in
// `without`.
std::string said_again(const po::variables_map& given, const std::string& option,
                       const std::vector<std::string>& without = {}) {
  std::string text;
  for (const auto& value : words_in(given, option.c_str())) {
    if (!is_in(without, value)) text += " --" + option + " " + shell_quoted(value);
  }
  return text;
}

// The folders of plugins for a command that names no TOML file: --plugin-path, and those beside the TOML files.
std::vector<std::string> plugin_paths(const po::variables_map& given) {
  auto folders = words_in(given, "plugin-path");
  for (const auto& folder : plugin_folders_beside(words_of(given))) {
    if (std::error_code none; fs::is_directory(folder, none)) folders.push_back(folder.string());
  }
  return folders;
}

// Returns this command again, but --resume and what sets something in `without`: keys or tables.
std::string command_of(const po::variables_map& given, const std::vector<std::string>& without = {}) {
  std::string command = trained_as();
  for (const auto& file : words_of(given)) command += " " + shell_quoted(file);
  command += said_again(given, "set", without) + said_again(given, "plugin-path");
  for (const auto& word : shorthands_given(given, without)) command += " " + shell_quoted(word);
  if (given.count("low-memory") != 0) command += " --low-memory";
  return command;
}

bool is_standard(const Prepared& prepared) {
  return prepared.wiring->precision->id() == std::string(Precision::role) + "/" + Precision::standard;
}

// Returns whether float32 may be slower than what this machine multiplies faster: where no layer is large, casts cost
// more than the products gain, and `vernier advise` would not offer it.
bool may_gain_by_fewer_bits(const Run& run) {
  constexpr std::int64_t least = 512 * 512;  // numbers of a large weight
  return hardware_of(run.device.type()).fastest() != torch::kFloat &&
         std::ranges::any_of(run.parameters, [](const auto& parameter) {
           return parameter.model.dim() > 1 && parameter.model.numel() >= least;
         });
}

// Returns this command with another precision. A scaler that only the command line gives goes with the old one.
std::string with_other_precision(const Prepared& prepared, const po::variables_map& given) {
  const bool from_standard = is_standard(prepared);
  const std::string other = from_standard ? "auto" : Precision::standard;
  const auto scaler = prepared.config.find(Scaler::role);
  const bool is_of_command = scaler != prepared.config.end() && scaler->second.where.starts_with("--set ");
  auto command = command_of(given, {Precision::role, is_of_command ? Scaler::role : Precision::role});
  const bool needs_scaler = from_standard && hardware_of(prepared.run.device.type()).fastest() == torch::kHalf;
  command += " --set precision.use=" + other + (needs_scaler ? " --set scaler.use=dynamic" : "");
  if (prepared.options.resume != "auto") return command;
  return command + " --set run.output=" + shell_quoted(prepared.run.output + "-" + other);  // else it is resumed
}

// The settings with which the schedules of callbacks follow more steps than were planned: those that have an option
// `replan`, and keep their plan else.
std::string replanned(const Wiring& wiring) {
  std::string text;
  for (const auto& callback : wiring.callbacks) {
    const auto& [options, table] = wiring.origin_of(*callback);
    const auto& declared = HostApi::declared(options);
    const auto key = std::ranges::find(declared, "replan", &OptionInfo::key);
    const auto* replans = key == declared.end() ? nullptr : std::get_if<bool>(&key->value.data);
    const bool is_path = use_of(table).find_first_of("./") != std::string::npos;  // no key of --set can name a path
    const bool is_second = callback->id().find('#') != std::string::npos;         // nor the second callback of one name
    if (replans == nullptr || *replans || is_path || is_second) continue;
    text += " --set " + shell_quoted("callback." + use_of(table) + ".replan=true");
  }
  return text;
}

void print_end(Prepared& prepared, const Outcome& outcome, const po::variables_map& given) {
  const Run& run = prepared.run;
  if (!prepared.wiring->swaps.empty()) {
    std::cout << "at its end\n";
    print_table(*prepared.wiring);
  }
  const bool is_stopped = outcome.signal != 0 || outcome.is_out_of_time;
  const char* end = is_stopped ? "stopped" : outcome.diverged.empty() ? "done" : "diverged";
  print_text("[AMP] at the end: " + status_line(run, prepared.trainer.roles()) + '\n');
  if (outcome.is_out_of_time) std::cout << "the time of [run] time_limit is over\n";
  if (!outcome.finished.empty()) print_text("finished early by " + outcome.finished + '\n');
  std::cout << end << " after " << steps_text(run.step) << ", " << run.step - outcome.updates
            << " skipped; everything is in " << printable(run.output) << '\n';
  const char* job = std::getenv("VERNIER_JOB");  // its number at `vernier serve`, whose files stand elsewhere
  if (job != nullptr) {
    if (is_stopped) std::cout << "resume with:  vernier jobs retry " << job << '\n';
    return;
  }
  if (is_stopped) {
    std::cout << "resume with:  " << command_of(given) << " --resume=" << shell_quoted(run.output) << '\n';
    return;
  }
  if (!outcome.diverged.empty()) return;
  const bool by_epochs = prepared.options.epochs > 0;
  std::cout << "try next:\n";
  if (!is_standard(prepared) || may_gain_by_fewer_bits(run)) {
    std::cout << "  another precision  " << with_other_precision(prepared, given) << '\n';
  }
  std::cout << "  train on           " << command_of(given, {"run.steps", by_epochs ? "run.epochs" : "run.steps"})
            << " --resume=" << shell_quoted(run.output) << (by_epochs ? " --epochs " : " --set run.steps=")
            << 2 * (by_epochs ? prepared.options.epochs : run.steps) << replanned(*prepared.wiring) << '\n'
            << "  other strategies   " << called_as() << " plugins\n";
}

// Returns true for a signal of a job scheduler, not for a person's Ctrl-C.
bool is_preempted(int signal) {
  return signal == SIGTERM || signal == SIGUSR1;
}

// Puts the job of Slurm that this process is part of back into the queue.
void requeue() {
  const char* job = std::getenv("SLURM_JOB_ID");
  if (job == nullptr) {
    return log(Level::warning, "requeue", "this is not a job of Slurm: there is no SLURM_JOB_ID");
  }
  const bool is_done = std::system("scontrol requeue \"$SLURM_JOB_ID\"") == 0;
  log(is_done ? Level::info : Level::warning, "requeue",
      is_done ? std::string("job ") + job + " is back in the queue"
              : "`scontrol requeue " + std::string(job) + "` failed; put the job into the queue yourself");
}

// Says why there is nothing to train.
void print_complete(Prepared& prepared) {
  const auto& finished = prepared.trainer.requests().finished();
  const auto replan = replanned(*prepared.wiring);
  std::cout << printable(prepared.run.output)
            << (finished.empty()
                    ? c10::str(" has all its ", steps_text(prepared.run.step))
                    : c10::str(" was finished after ", steps_text(prepared.run.step), " by ", printable(finished)))
            << "; to train on, raise run.steps or run.epochs" << (replan.empty() ? "" : ", and add" + replan) << '\n';
}

// A run without a [[monitor]] would show nothing of its losses. `monitor = []` above all tables leaves it out.
void show_progress(Table& config) {
  config.try_emplace(Monitor::role, Value{Array{{Table{{"use", {std::string("progress"), ""}}}, ""}}, ""});
}

// For [run] measure_savings: vernier check takes a step as configured and one in float32, in a process of its own, so
// that the run keeps its memory and its bits. The run goes on without a figure if that fails.
void measure_savings(const Prepared& prepared, TrainerRun& run, const po::variables_map& given) {
  if (run.control->ranks() > 1) refuse("[run] measure_savings is for a single process; leave it out");
  std::vector<std::string> words = {"check", run.output + "/config.toml", "--savings"};
  for (const auto& folder : plugin_paths(given)) words.push_back("--plugin-path=" + folder);
  Children children(program_beside_this());
  const auto ended = children.run(words);
  if (const int signal = children.stopped_by(); signal != 0) stop_signal() = signal;
  char* end = nullptr;
  const auto bytes = std::strtoll(ended.out.c_str(), &end, 10);
  if (ended.status == 0 && end != ended.out.c_str()) {
    run.amp.add_memory_savings(static_cast<double>(bytes) / 1e9);
  } else {
    log(Level::warning, "run", "measure_savings: " + last_line(ended.err));
  }
}

// Ends a run that a signal stopped before there is anything to save.
int stop_before_the_first_step(const Prepared& prepared) {
  const int signal = stop_signal();
  std::cout << "stopped before the first step; nothing was trained or written\n";
  if (prepared.options.requeue && is_preempted(signal)) requeue();
  return 128 + signal;
}

// Returns the exit status of a run that did not fail.
int exit_status(const Outcome& outcome) {
  if (outcome.signal != 0) return 128 + outcome.signal;
  if (outcome.is_out_of_time) return out_of_time;
  return outcome.diverged.empty() ? 0 : diverged;
}

}  // namespace

int train(const po::variables_map& given) {
  const std::string from = given.count("resume") != 0 ? given["resume"].as<std::string>() : "";
  const bool quiet = given.count("quiet") != 0, inexact = given.count("allow-inexact") != 0;
  if (quiet) std::cout.setstate(std::ios::failbit);  // prints nothing
  listen_for_signals();
  const auto prepared = prepare(given, show_progress);
  for (const auto* plugin : prepared->wiring->plugins()) {
    log(Level::debug, plugin->id(), "version " + plugin->version());
  }
  if (stop_signal() != 0) return stop_before_the_first_step(*prepared);
  TrainerRun& run = prepared->run;
  std::string folders;
  for (const auto& folder : plugin_paths(given)) folders += " --plugin-path " + shell_quoted(folder);
  run.replay_command = called_as() + " replay" + folders;
  run.quiet = quiet || prepared->wiring->distributed->rank() > 0;
  prepared->logs_steps = given.count("debug") != 0;
  const auto folder = open_run(*prepared, from, inexact, [](const std::string& path) {
    open_log_file(path);
    name_crashes_in(path);
  });
  // The program that called this one, such as Python, reads there where the run is.
  if (const char* file = std::getenv("VERNIER_FOLDER_FILE")) std::ofstream(file) << run.output;
  if (has_all_it_needs(*prepared)) {
    print_complete(*prepared);
    return 0;
  }
  write_config(*prepared);
  if (prepared->options.measure_savings && !prepared->resumes) measure_savings(*prepared, run, given);
  print_wiring(*prepared, called_as() + " compare" + folders + " " + shell_quoted(run.output + "/config.toml") +
                              " --output " + shell_quoted(run.output + "-compare"));
  if (prepared->resumes) std::cout << "resumed after step " << run.step << '\n';
  std::cout.flush();  // before the monitors write to stderr
  Outcome outcome;
  const ExitRefused no_exit(
      [&](const std::string& why) { summarize(*prepared, prepared->trainer.outcome_now(run, why)); });
  try {
    outcome = prepared->trainer.train(run);
  } catch (...) {
    const auto kind = caught().kind;
    if (!remove_untrained(*prepared, folder)) summarize_failure(*prepared, prepared->trainer.outcome(), kind);
    throw;
  }
  summarize(*prepared, outcome);
  warn_of_divergence(run, outcome);
  print_end(*prepared, outcome, given);
  if (prepared->options.requeue && (is_preempted(outcome.signal) || outcome.is_out_of_time)) requeue();
  return exit_status(outcome);
}

}  // namespace vernier::cli
