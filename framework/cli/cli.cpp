#include "cli.h"

#include <ATen/Context.h>
#include <ATen/Parallel.h>
#include <spawn.h>
#include <sys/wait.h>
#include <torch/utils.h>
#include <unistd.h>
#include <vernier/error.h>
#include <vernier/fused_kernels.h>
#include <vernier/hardware.h>

#include <algorithm>
#include <atomic>
#include <boost/program_options.hpp>
#include <cmath>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <iostream>

#include "checkpoint_tools.h"
#include "completion.h"
#include "core/printable.h"
#include "dry_run.h"
#include "find_lr.h"
#include "low_memory.h"
#include "other_verbs.h"
#include "output/log.h"
#include "output/output.h"
#include "output/recorded_run.h"
#include "output/terminal.h"
#include "output/text.h"
#include "plugin_list.h"
#include "profile.h"
#include "replay/replay.h"
#include "replay/travel.h"
#include "run/crash.h"
#include "run/device.h"
#include "run/init_weights.h"
#include "run/prepared.h"
#include "run/snapshot.h"
#include "run/training_loop.h"
#include "schema.h"
#include "shorthands.h"
#include "use_model.h"
#include "version.h"
#include "wiring/config.h"
#include "wiring/plugin_folders.h"

namespace vernier {

namespace fs = std::filesystem;
namespace po = boost::program_options;

namespace {

constexpr const char* program_usage = R"(usage: vernier VERB …

  train FILE… [--set KEY=VALUE]… [--resume[=PATH]]   trains what the TOML files say, merged left to right
  check FILE… [--set KEY=VALUE]…                     all of it but the training: plugins, data, model, device,
                                                     one batch without an update, its memory, advice
  check PLUGIN.so [--set KEY=VALUE]…                 tries the laws of plugins on a library; see check x.so --help
  profile FILE… [--steps N] [--output FILE]          where the time of a step goes: a table of N steps (20), and a
                                                     trace (profile.json) for https://ui.perfetto.dev
  replay CAPSULE [--precision NAME] [--set …]…       runs a step that callback/flight_recorder kept again,
                                                     and traces it; beside it, with what --precision and --set change
  replay RUN --step N [--precision NAME] [--set …]…  the same for any step of a run, with the ranges of each layer
  replay RUN --step N..M --watch LAYER               the ranges of one layer, a line for each of the steps
  replay RUN --against OTHER                         the first step, layer and operation in which two runs differ
  evaluate RUN [--set …]…                            prints the metrics of a run's model on its validation data
  predict RUN --input FILE --output FILE             writes what it predicts: .csv, .npy or .jsonl
  export RUN --format FORMAT --output FILE           writes the model: torchscript, safetensors, python, or for language
                                                     models huggingface and peft
  config FILE… [--set KEY=VALUE]…                    prints the merged configuration, with the place of each value
  config --schema                                    prints a JSON Schema of it, with which editors check and complete
  version [--json]                                   prints what this program was built of
  plugins [ROLE/NAME]                                lists the plugins, or the options of one
  checkpoint TOOL …                                  list, verify, show, export, import; see checkpoint --help
  runs [FOLDER]                                      lists runs: state, steps, losses, precision, time
  watch RUN                                          draws a run's losses from its files while it goes on
  report RUN… [--output FILE]                        writes a page of HTML: results, curves, differences
  compare FILE… [--sweep KEY=VALUE,VALUE]…           trains them with the same seeds, in turn: speed, memory, losses,
                                                     and which differences the seeds show
  launch -n RANKS FILE… [--restarts N]               trains with several processes on this machine; see launch --help
  serve FOLDER [--cores N] [--data FOLDER]…          a job server for this machine, with a page; see serve --help
  jobs submit|list|show|logs|cancel|retry|…          its client; see jobs --help
  audit verify FILE                                  checks the audit log of serve
  generate RUN --prompt TEXT                         continues a text with a run's language model, or a published one
  tokenize FILE… --tokenizer FOLDER --output FILE    writes the tokens of texts, or trains a tokenizer on them
  advise FILE… [--memory 8G] [--seconds 60]          measures it in other precisions, micro-batches and kernels here,
                                                     says which are best, and writes an overlay
  new plugin ROLE NAME | task NAME | app NAME        writes a folder to start from, which builds and runs at once
  VERB …                                             any other verb runs the program vernier-VERB of PATH

options
  --set KEY=VALUE        sets one value: run.steps=100, 'task.data=["a", "b"]', callback.clip_norm.max_norm=0.5
  --resume[=PATH]        resumes from the run's newest checkpoint, or from the run or checkpoint at PATH
  --allow-inexact        resumes even if the result will differ from an uninterrupted run
  --plugin-path FOLDER   looks for <role>/<name>.so there first; may be repeated; then in $VERNIER_PLUGIN_PATH, in the
                         folder plugins beside FILE, in ~/.local/share/vernier/plugins, and in the installation
  --find-lr              check also trains a copy of the model for 100 steps at ever higher learning rates, plots the
                         loss, and suggests a rate
  --quiet                train prints warnings and errors only, and no progress
  --debug                debug lines of the log too
  --help, --version

for people who come from other trainers; each is exactly a --set
  --mixed-precision no|fp16|bf16|fp8   precision.use; fp16 brings scaler.use=dynamic where the files have no [scaler]
  --amp-opt-level O0|O1|O2|O3          precision.level
  --grad-scaler-init SCALE             scaler.init_scale
  --grad-scaler-growth-interval STEPS  scaler.growth_interval
  --grad-scaler-backoff FACTOR         scaler.backoff_factor
  --grad-accum-steps NUMBER            accumulation.micro_batches: each batch in so many, its size stays
  --batch-size SAMPLES                 task.batch_size
  --epochs EPOCHS                      run.epochs, in the place of run.steps
  --grad-ckpt                          task.recompute=full: activations are computed again; see docs/memory.md

  --low-memory           switches on what saves memory, where the files do not say else:
                         accumulation.use=fit, task.recompute=full, optimizer.state=8bit; each logs its cost

In the source tree ./vernier builds what is missing and knows three verbs more:
  build                  builds the program and its plugins
  test [CTEST OPTIONS]   builds and runs the tests
  bench [NAME…]          builds and runs the benchmarks
)";

std::atomic<int> stop_signal = 0;

constexpr int diverged = 5, out_of_time = 124;  // exit statuses; for those of an error see Error::Kind

constexpr int stopping_signals[] = {SIGINT, SIGTERM, SIGHUP, SIGUSR1};

// The first signal ends the run after the step in work, with a checkpoint. After it a SIGINT ends the process at once;
// another is no reason to: Slurm sends SIGUSR1, and later SIGTERM.
extern "C" void remember_signal(int signal) {
  int none = 0;
  stop_signal.compare_exchange_strong(none, signal);
  std::signal(SIGINT, SIG_DFL);
}

void listen_for_signals() {
  for (const int signal : stopping_signals) std::signal(signal, remember_signal);
  std::signal(SIGPIPE, SIG_IGN);  // `vernier train … | head` loses the lines, not the run
}

std::vector<std::string> strings_of(const po::variables_map& given, const char* option) {
  return given.count(option) != 0 ? given[option].as<std::vector<std::string>>() : std::vector<std::string>{};
}

std::string word_or(const po::variables_map& given, const char* option, const std::string& fallback) {
  return given.count(option) != 0 ? given[option].as<std::string>() : fallback;
}

// The TOML files of the command.
std::vector<std::string> files_of(const po::variables_map& given) {
  const auto& verb = given["verb"].as<std::string>();
  const bool takes_files = verb == "train" || verb == "check" || verb == "config" || verb == "profile";
  return takes_files ? strings_of(given, "argument") : std::vector<std::string>{};
}

Host make_host(const po::variables_map& given) {
  return Host(plugin_folders(strings_of(given, "plugin-path"), "--plugin-path ", files_of(given)));
}

bool wants_to_resume(const po::variables_map& given) {
  return given.count("resume") != 0 || given.count("resume-newest") != 0;
}

// For a run that trains a few steps and leaves nothing.
void keep_nothing(Table& config) {
  config.erase(Monitor::role);
  config.insert_or_assign(Checkpoint::role, Value{Table{{"use", {std::string("none"), ""}}}, ""});
}

// The same run without any low precision, to compare with.
void put_in_float32(Table& config) {
  config.insert_or_assign(Precision::role, Value{Table{{"use", {std::string("fp32"), ""}}}, ""});
  config.insert_or_assign(Scaler::role, Value{Table{{"use", {std::string("none"), ""}}}, ""});
}

// What the files, --set and the shorthands say together.
Table merged_config(const po::variables_map& given) {
  const auto& verb = given["verb"].as<std::string>();
  if (given.count("argument") == 0) refuse("name a TOML file, as in `vernier " + verb + " configs/quickstart.toml`");
  const auto& files = given["argument"].as<std::vector<std::string>>();
  auto sets = given.count("set") != 0 ? given["set"].as<std::vector<std::string>>() : std::vector<std::string>{};
  const auto more = sets_of_shorthands(given, sets, merge_config(files, {}).count(Scaler::role) != 0);
  sets.insert(sets.end(), more.begin(), more.end());
  return load_config(files, sets);
}

// Prints nothing, and logs only errors to stderr.
void be_silent() {
  std::cout.setstate(std::ios::failbit);
  set_log_level(static_cast<int>(Level::error));
}

std::unique_ptr<Prepared> prepare(const po::variables_map& given, void (*change)(Table&) = nullptr) {
  auto config = merged_config(given);
  if (change != nullptr) change(config);
  const auto host = make_host(given);
  if (given.count("low-memory") != 0) config = with_low_memory(std::move(config), host);
  const auto resumes = [&](const Wiring& wiring, const RunOptions& options, const std::string& output) {
    if (wiring.distributed->rank() > 0) be_silent();  // rank 0 speaks for all
    return wants_to_resume(given) || (options.resume == "auto" && OutputFolder::is_there(output));
  };
  const fs::path first = given["argument"].as<std::vector<std::string>>().front();
  return prepare(std::move(config), first.stem().string(), host, stop_signal, resumes);
}

std::int64_t count_parameters(const Run& run) {
  std::int64_t count = 0;
  for (const auto& parameter : run.parameters) count += parameter.model.numel();
  return count;
}

// Breaks lines that are longer than the terminal's.
void print_text(const std::string& text, std::size_t indent = 2) {
  std::cout << wrapped(text, columns_of(STDOUT_FILENO), indent);
}

// Options that do not fit into the line of their plugin continue below the first one.
void print_table(const Wiring& wiring) {
  constexpr std::size_t options_begin = 29;
  print_text(wiring.table(), options_begin);
}

void print_wiring(const Prepared& prepared) {
  const Run& run = prepared.run;
  print_text(c10::str("run ", run.name, ": ", run.steps, " steps on ", run.device, ", ", at::get_num_threads(),
                      at::get_num_threads() == 1 ? " thread, " : " threads, ", count_parameters(run), " parameters",
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
}

Level log_level(const po::variables_map& given) {
  if (given.count("quiet") != 0) return Level::warning;
  return given.count("debug") != 0 ? Level::debug : Level::info;
}

// What a policy is compared with; nothing where that cannot be had, for it is no part of the run.
std::optional<DryRun> dry_run_in_float32(const po::variables_map& given) {
  set_log_level(static_cast<int>(Level::error));  // all of it is logged already
  std::optional<DryRun> seen;
  std::string trouble;
  try {
    const auto prepared = prepare(given, put_in_float32);
    seen = dry_run(prepared->trainer, *prepared->wiring, prepared->run);
  } catch (...) {
    trouble = caught().message;
  }
  set_log_level(static_cast<int>(log_level(given)));
  if (!seen) log(Level::warning, "check", "nothing to compare with, for in float32 it fails: " + trouble);
  return seen;
}

void print_dry_run(const std::string& policy, const DryRun& dry_run, const std::optional<DryRun>& in_float32) {
  std::cout << "on the first batch: loss " << print_number("%.5g", dry_run.loss);
  std::vector<std::pair<std::string, MemoryUse>> columns;
  if (in_float32) {
    std::cout << ", in float32 " << print_number("%.5g", in_float32->loss);
    columns.emplace_back("fp32", in_float32->memory);
  }
  columns.emplace_back(policy, dry_run.memory);
  std::cout << '\n';
  const bool has_state = dry_run.memory.bytes("optimizer") > 0;
  print_text(memory_table(columns) +
             (has_state ? "" : "  an optimizer's state may come with its first step: see monitor/ledger\n"));
  for (const auto& line : advise(dry_run, in_float32)) print_text("advice: " + line + '\n');
}

// What each rank keeps for itself; "" where there is one rank.
std::string memory_of_ranks(Run& run, const MemoryUse& here) {
  if (run.control->ranks() == 1) return "";
  State own;
  for (const char* part : {"masters", "optimizer"}) own.put(part, here.bytes(part));
  own.put("peak", here.peak);
  std::string text;
  const auto all = run.control->gather(own);
  for (std::size_t r = 0; r < all.size(); ++r) {
    const auto bytes = [&](const char* part) { return memory_text(all[r].integer(part)); };
    text += c10::str("memory of rank ", r, ": masters ", bytes("masters"), ", optimizer ", bytes("optimizer"),
                     ", peak ", bytes("peak"), '\n');
  }
  return text;
}

void find_learning_rate(const po::variables_map& given) {
  set_log_level(static_cast<int>(Level::error));  // all of it is logged already
  const auto prepared = prepare(given, keep_nothing);
  const auto test = test_rates(prepared->trainer, *prepared->wiring, prepared->run);
  set_log_level(static_cast<int>(log_level(given)));
  std::cout << plot(test);
}

int check(const po::variables_map& given) {
  if (wants_to_resume(given)) refuse("check looks at a new run only; leave --resume out");
  auto prepared = prepare(given);
  print_wiring(*prepared);
  std::cout.flush();
  const auto precision = prepared->wiring->precision->id();
  const bool is_alone = prepared->run.control->ranks() == 1;
  if (!is_alone && given.count("find-lr") != 0) refuse("--find-lr trains a copy of the model in one process only");
  const auto seen = dry_run(prepared->trainer, *prepared->wiring, prepared->run);
  const auto of_ranks = memory_of_ranks(prepared->run, seen.memory);
  const auto validation_loss = prepared->trainer.rehearse(prepared->run);
  prepared.reset();  // two models at once may be too many
  std::optional<DryRun> in_float32;
  if (seen.is_low && is_alone) in_float32 = dry_run_in_float32(given);  // the ranks meet once
  print_dry_run(precision.substr(precision.find('/') + 1), seen, in_float32);
  std::cout << of_ranks;
  if (validation_loss) std::cout << "in a validation: loss " << print_number("%.4f", *validation_loss) << '\n';
  if (given.count("find-lr") != 0) find_learning_rate(given);
  std::cout << "ready: nothing was trained or written\n";
  return 0;
}

// How this program was called, for lines to copy: the wrapper at the root of the source tree says its own name.
std::string called_as() {
  const char* name = std::getenv("VERNIER_CALLED_AS");
  return name != nullptr ? name : "vernier";
}

// How a training is started again: `vernier launch` says how it was called.
std::string trained_as() {
  const char* launched = std::getenv("VERNIER_LAUNCHED_AS");
  return launched != nullptr ? launched : called_as() + " train";
}

// For a POSIX shell.
std::string quoted(const std::string& word) {
  constexpr const char* safe = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-+=./,:@%";
  if (!word.empty() && word.find_first_not_of(safe) == std::string::npos) return word;
  std::string text = "'";
  for (const char c : word) text += c == '\'' ? std::string("'\\''") : std::string(1, c);
  return printable(text + "'");
}

// The options of one name again, each after a space: " --plugin-path build/plugins". Without those that begin so.
std::string said_again(const po::variables_map& given, const std::string& option, const std::string& without = "") {
  std::string text;
  if (given.count(option) == 0) return text;
  for (const auto& value : given[option].as<std::vector<std::string>>()) {
    if (without.empty() || !value.starts_with(without)) text += " --" + option + " " + quoted(value);
  }
  return text;
}

// Of a command that names none of this one's TOML files: the folders beside them too.
std::string plugin_paths_again(const po::variables_map& given) {
  auto text = said_again(given, "plugin-path");
  for (const auto& folder : plugin_folders_beside(files_of(given))) {
    std::error_code none;
    if (fs::is_directory(folder, none)) text += " --plugin-path " + quoted(folder.string());
  }
  return text;
}

// The command again, without --resume, the shorthands that are named, and what sets a key that begins so.
std::string command_of(const po::variables_map& given, const std::vector<std::string>& without = {},
                       const std::string& without_key = "") {
  std::string command = trained_as();
  for (const auto& file : given["argument"].as<std::vector<std::string>>()) command += " " + quoted(file);
  command += said_again(given, "set", without_key) + said_again(given, "plugin-path");
  for (const auto& word : shorthands_given(given, without)) command += " " + quoted(word);
  if (given.count("low-memory") != 0) command += " --low-memory";
  return command;
}

void print_end(const Prepared& prepared, const Outcome& outcome, const po::variables_map& given) {
  const Run& run = prepared.run;
  if (!prepared.wiring->swaps.empty()) {
    std::cout << "at its end\n";
    print_table(*prepared.wiring);
  }
  const bool is_stopped = outcome.signal != 0 || outcome.is_out_of_time;
  const char* end = is_stopped ? "stopped" : outcome.diverged.empty() ? "done" : "diverged";
  if (outcome.is_out_of_time) std::cout << "the time of [run] time_limit is over\n";
  if (!outcome.finished.empty()) print_text("finished early by " + outcome.finished + '\n');
  std::cout << end << " after " << run.step << " steps, " << run.step - outcome.updates << " skipped; everything is in "
            << printable(run.output) << '\n';
  if (is_stopped) {
    std::cout << "resume with:  " << command_of(given) << " --resume=" << quoted(run.output) << '\n';
    return;
  }
  if (!outcome.diverged.empty()) return;
  const std::string other = prepared.wiring->precision->id() == "precision/bf16" ? "fp32" : "bf16";
  const bool by_epochs = prepared.options.epochs > 0;
  std::cout << "try next:\n"
            << "  another precision  " << command_of(given, {"mixed-precision", "amp-opt-level"}, "precision.")
            << " --set precision.use=" << other << '\n'
            << "  train on           " << command_of(given, {"epochs"}) << " --resume=" << quoted(run.output)
            << " --set run." << (by_epochs ? "epochs=" : "steps=")
            << 2 * (by_epochs ? prepared.options.epochs : run.steps) << '\n'
            << "  other strategies   " << called_as() << " plugins\n";
}

// Not a person's Ctrl-C.
bool is_preempted(int signal) {
  return signal == SIGTERM || signal == SIGUSR1;
}

// Slurm starts the job again, and resume = "auto" resumes it.
void requeue() {
  const char* job = std::getenv("SLURM_JOB_ID");
  if (job == nullptr) return log(Level::warning, "requeue", "this is no job of Slurm: there is no SLURM_JOB_ID");
  std::vector<std::string> words = {"scontrol", "requeue", job};
  std::vector<char*> arguments;
  for (auto& word : words) arguments.push_back(word.data());
  arguments.push_back(nullptr);
  pid_t child = 0;
  int status = ::posix_spawnp(&child, "scontrol", nullptr, nullptr, arguments.data(), environ);
  if (status != 0)
    return log(Level::warning, "requeue", std::string("scontrol cannot be run: ") + std::strerror(status));
  while (::waitpid(child, &status, 0) < 0 && errno == EINTR) {
  }
  if (status == 0) return log(Level::info, "requeue", std::string("job ") + job + " is back in the queue");
  log(Level::warning, "requeue",
      "`scontrol requeue " + std::string(job) + "` failed; put the job into the queue yourself");
}

// What a signal asks for before there is anything to save.
int stop_before_the_first_step(const Prepared& prepared) {
  const int signal = stop_signal;
  std::cout << "stopped before the first step; nothing was trained or written\n";
  if (prepared.options.requeue && is_preempted(signal)) requeue();
  return 128 + signal;
}

// Of a run that no error ended.
int exit_status(const Outcome& outcome) {
  if (outcome.signal != 0) return 128 + outcome.signal;
  if (outcome.is_out_of_time) return out_of_time;
  return outcome.diverged.empty() ? 0 : diverged;
}

int train(const po::variables_map& given) {
  const std::string from = given.count("resume") != 0 ? given["resume"].as<std::string>() : "";
  const bool quiet = given.count("quiet") != 0, inexact = given.count("allow-inexact") != 0;
  if (quiet) std::cout.setstate(std::ios::failbit);  // prints nothing
  listen_for_signals();
  replay_command() = called_as() + " replay" + plugin_paths_again(given);
  const auto prepared = prepare(given);
  for (const auto* plugin : prepared->wiring->plugins()) {
    log(Level::debug, plugin->id(), "version " + plugin->version());
  }
  if (stop_signal != 0) return stop_before_the_first_step(*prepared);
  Run& run = prepared->run;
  run.quiet = quiet || prepared->wiring->distributed->rank() > 0;
  const auto folder = open_run(*prepared, from, inexact, [](const std::string& path) {
    log_to_file(path);
    name_crashes_in(path);
  });
  if (has_all_it_needs(*prepared)) {
    const auto& finished = prepared->trainer.finished();
    std::cout << printable(run.output)
              << (finished.empty() ? c10::str(" has all its ", run.step, " steps")
                                   : c10::str(" was finished after ", run.step, " steps by ", printable(finished)))
              << "; to train on, raise run.steps or run.epochs\n";
    return 0;
  }
  write_config(*prepared);
  print_wiring(*prepared);
  if (prepared->resumes) std::cout << "resumed after step " << run.step << '\n';
  std::cout.flush();  // before the monitors write to stderr
  Outcome outcome;
  const ExitRefused no_exit(
      [&](const std::string& why) { summarize(*prepared, prepared->trainer.outcome_now(run, why)); });
  try {
    outcome = prepared->trainer.train(run);
  } catch (...) {
    summarize_failure(*prepared, prepared->trainer.outcome(), caught().kind);
    throw;
  }
  summarize(*prepared, outcome);
  warn_of_divergence(run, outcome);
  print_end(*prepared, outcome, given);
  if (prepared->options.requeue && (is_preempted(outcome.signal) || outcome.is_out_of_time)) requeue();
  return exit_status(outcome);
}

int profile(const po::variables_map& given) {
  if (wants_to_resume(given)) refuse("profile trains the first steps of a new run; leave --resume out");
  auto config = merged_config(given);
  const auto host = make_host(given);
  if (given.count("low-memory") != 0) config = with_low_memory(std::move(config), host);
  const auto steps = parse_value(word_or(given, "steps", "20"), "--steps");
  const auto* number = std::get_if<std::int64_t>(&steps.data);
  if (number == nullptr || *number < 1 || *number > 1000) refuse("--steps must be an integer from 1 to 1000");
  const fs::path first = given["argument"].as<std::vector<std::string>>().front();
  listen_for_signals();
  set_log_level(static_cast<int>(Level::error));  // `vernier check` has the rest
  return profile(std::move(config), *number, word_or(given, "output", "profile.json"), first.stem().string(), host,
                 stop_signal);
}

int replay(const po::variables_map& given) {
  if (given.count("argument") == 0) {
    refuse("name a run or a capsule, as in `vernier replay runs/NAME --step 124`; see vernier --help");
  }
  const auto& paths = given["argument"].as<std::vector<std::string>>();
  if (paths.size() > 1) refuse("replay takes one run or capsule, and " + paths[1] + " is a second");
  if (const auto words = shorthands_given(given); !words.empty()) {
    refuse(words.front() + " is for train and check; replay takes --precision NAME and --set KEY=VALUE");
  }
  const auto& path = paths.front();
  const auto text = [&](const char* option) { return word_or(given, option, ""); };
  auto sets = strings_of(given, "set");
  if (given.count("precision") != 0) sets.push_back("precision.use=" + text("precision"));
  const bool is_one_step = given.count("watch") == 0 && given.count("against") == 0;
  if (!is_one_step && !sets.empty()) refuse("--set and --precision replay a single step: say --step N alone");
  const auto host = make_host(given);
  if (is_run(path) && !is_checkpoint(path)) {
    listen_for_signals();
    if (given.count("against") != 0) return replay_against(path, text("against"), host, stop_signal);
    if (given.count("step") == 0) refuse(path + " is a run: say which step of it, --step N, or --against OTHER");
    const auto steps = steps_of(text("step"));
    if (given.count("watch") != 0) return watch_layer(path, steps, text("watch"), host, stop_signal);
    if (steps.first != steps.last) refuse("name a layer for a range of steps: --watch LAYER");
    return replay_step(path, steps.first, sets, host, stop_signal);
  }
  if (!is_one_step || given.count("step") != 0) refuse(path + ": is no run, so it has no other steps");
  return replay_capsule(path, sets, host, stop_signal);
}

std::string word_of(const po::variables_map& given, const std::string& option, const std::string& example) {
  if (given.count(option) == 0) refuse("--" + option + " is missing, as in `" + example + "`");
  return given[option].as<std::string>();
}

// evaluate, predict and export: what a trained run is used for.
int use_run(const std::string& verb, const po::variables_map& given) {
  const std::string example = verb == "evaluate"  ? "vernier evaluate runs/NAME"
                              : verb == "predict" ? "vernier predict runs/NAME --input new.csv --output predictions.csv"
                                                  : "vernier export runs/NAME --format torchscript --output model.pt";
  if (given.count("argument") == 0) refuse("name a run or a checkpoint, as in `" + example + "`");
  const auto& paths = given["argument"].as<std::vector<std::string>>();
  if (paths.size() > 1) refuse(verb + " takes one run, and " + paths[1] + " is a second");
  auto sets = given.count("set") != 0 ? given["set"].as<std::vector<std::string>>() : std::vector<std::string>{};
  const auto more = sets_of_shorthands(given, sets, true);
  sets.insert(sets.end(), more.begin(), more.end());
  const auto host = make_host(given);
  listen_for_signals();
  if (verb == "evaluate") return evaluate_run(paths[0], sets, host, stop_signal);
  const auto output = word_of(given, "output", example);
  if (verb == "predict") {
    return predict_with_run(paths[0], sets, host, stop_signal, word_of(given, "input", example), output);
  }
  return export_run(paths[0], sets, host, stop_signal, word_of(given, "format", example), output);
}

int print_config(const po::variables_map& given) {
  if (wants_to_resume(given)) refuse("config only prints; leave --resume out");
  if (given.count("schema") == 0) {
    auto merged = merged_config(given);
    if (given.count("low-memory") != 0) merged = with_low_memory(std::move(merged), make_host(given));
    std::cout << to_toml_with_places(merged);
  } else if (given.count("argument") != 0) {
    refuse("--schema is that of every configuration; name no file");
  } else {
    std::cout << schema_of(make_host(given)).dump(2) << '\n';
  }
  return 0;
}

int plugins(const po::variables_map& given) {
  const Host host = make_host(given);
  if (given.count("argument") == 0) {
    list_plugins(host);
  } else {
    describe_plugin(host, given["argument"].as<std::vector<std::string>>().front());
  }
  return 0;
}

// Options are written with hyphens; underscores mean the same: --batch_size is --batch-size.
std::string with_hyphens(std::string word) {
  const auto end = std::find(word.begin(), word.end(), '=');
  if (word.starts_with("--")) std::replace(word.begin(), end, '_', '-');
  return word;
}

po::options_description known_options() {
  po::options_description known;
  auto add = known.add_options();
  for (const char* name :
       {"verb", "resume", "precision", "input", "output", "format", "step", "steps", "watch", "against"})
    add(name, po::value<std::string>());
  for (const char* name : {"argument", "set", "plugin-path"}) add(name, po::value<std::vector<std::string>>());
  for (const char* name : {"resume-newest", "allow-inexact", "low-memory", "find-lr", "schema", "json", "quiet",
                           "debug", "help", "version"}) {
    add(name, "");
  }
  add_shorthands(known);
  return known;
}

po::variables_map parse(int argc, char** argv) {
  // Program_options would take the word behind a bare --resume, a TOML file, for its path.
  std::vector<std::string> words(argv + 1, argv + argc);
  std::ranges::transform(words, words.begin(), with_hyphens);
  std::replace(words.begin(), words.end(), std::string("--resume"), std::string("--resume-newest"));
  const auto known = known_options();
  po::positional_options_description places;
  places.add("verb", 1).add("argument", -1);
  po::variables_map given;
  try {
    po::store(po::command_line_parser(words).options(known).positional(places).run(), given);
  } catch (const po::unknown_option& unknown) {
    refuse(unknown.what() + hint_for_flag(unknown.get_option_name(), known) + "; see vernier --help");
  }
  return given;
}

// For the scripts in framework/shell: `vernier complete WORD…`.
int complete(int argc, char** argv, std::vector<std::string> verbs) {
  const auto others = other_verbs();
  verbs.insert(verbs.end(), others.begin(), others.end());
  std::vector<std::string> flags;
  const auto options = known_options();
  for (const auto& option : options.options()) {
    const auto& name = option->long_name();
    if (name != "verb" && name != "argument" && name != "resume-newest") flags.push_back("--" + name);
  }
  for (const auto& each : completions({argv + 2, argv + argc}, verbs, flags, make_host(parse(2, argv)))) {
    std::cout << each << '\n';
  }
  return 0;
}

// `vernier check plugin.so`: the laws of plugins are tried by a program of its own.
bool is_check_of_plugin(int argc, char** argv) {
  return argc > 2 && argv[1] == std::string("check") && std::any_of(argv + 2, argv + argc, [](const std::string& word) {
           return word.ends_with(".so") && word.find('=') == std::string::npos;
         });
}

void refuse_option_of_another_verb(const po::variables_map& given, const std::string& verb) {
  if (given.count("precision") != 0 && verb != "replay") refuse("--precision is for replay; say --mixed-precision");
  const std::vector<std::pair<const char*, std::string>> owners = {
      {"steps", "profile"}, {"step", "replay"},   {"watch", "replay"}, {"against", "replay"},
      {"find-lr", "check"}, {"schema", "config"}, {"json", "version"}};
  for (const auto& [option, owner] : owners) {
    if (given.count(option) == 0 || verb == owner) continue;
    refuse(c10::str("--", option, " is for ", owner, "; say `vernier ", owner, " --", option, "`"));
  }
}

int run_verb(int argc, char** argv) {
  static char check_plugin[] = "check-plugin";
  if (is_check_of_plugin(argc, argv)) argv[1] = check_plugin;
  std::vector<std::string> known = {"train",  "check",   "config",  "evaluate",   "predict", "export",
                                    "replay", "profile", "plugins", "checkpoint", "version"};
  if (argc > 1 && argv[1] == std::string("complete")) return complete(argc, argv, known);
  const bool begins_with_verb = argc > 1 && argv[1][0] != '-';
  if (begins_with_verb && std::ranges::find(known, argv[1]) == known.end()) become_other_verb(argv + 1);
  if (argc > 1 && argv[1] == std::string("checkpoint")) return run_checkpoint_tool(argc - 1, argv + 1);
  const auto given = parse(argc, argv);
  if (given.count("version") != 0) {
    std::cout << version_line() << '\n';
    return 0;
  }
  if (given.count("help") != 0) {
    std::cout << program_usage;
    return 0;
  }
  if (given.count("verb") == 0) {
    std::cerr << program_usage;
    return 2;
  }
  set_log_level(static_cast<int>(log_level(given)));
  const auto& verb = given["verb"].as<std::string>();
  refuse_option_of_another_verb(given, verb);
  if (verb == "train") return train(given);
  if (verb == "check") return check(given);
  if (verb == "config") return print_config(given);
  if (verb == "plugins") return plugins(given);
  if (verb == "replay") return replay(given);
  if (verb == "profile") return profile(given);
  if (verb == "version") return print_version(given.count("json") != 0);
  if (verb == "evaluate" || verb == "predict" || verb == "export") return use_run(verb, given);
  const auto others = other_verbs();
  if (std::ranges::find(others, verb) != others.end())
    refuse("say `vernier " + verb + "` first, and its options after");
  known.insert(known.end(), others.begin(), others.end());
  const auto near = nearest(verb, known);
  refuse("there is no verb \"" + shortened(verb) + "\"" +
         (near.empty() ? "; see vernier --help" : "; did you mean " + near + "?"));
}

}  // namespace

int run_command_line(int argc, char** argv) {
  set_log_sink([](Level level, const std::string& who, const std::string& text) {
    write_log(static_cast<int>(level), who, printable(text, "\n\t"));
  });
  name_crashes();
  const ExitRefused no_exit;
  try {
    refuse_another_libtorch();
    return run_verb(argc, argv);
  } catch (const po::error& error) {
    std::cerr << "vernier: " << message(error) << "; see vernier --help\n";
    return 2;
  } catch (...) {
    const auto [text, kind] = caught();
    write_log(static_cast<int>(Level::error), "vernier", text);  // into the run's log too, where there is one
    return static_cast<int>(kind);
  }
}

}  // namespace vernier
