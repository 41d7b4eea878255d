// `vernier profile`: where the time of a step goes.
#include <c10/util/StringUtil.h>
#include <vernier/error.h>
#include <vernier/whole_file.h>

#include <filesystem>
#include <fstream>
#include <iostream>

#include "cli/command.h"
#include "cli/program.h"
#include "common/log.h"
#include "common/output_file.h"
#include "common/scratch_folder.h"

namespace vernier {

namespace fs = std::filesystem;
using namespace cli;

namespace {

constexpr const char* usage = R"(usage: vernier profile FILE… [--steps N] [--output FILE] [--set KEY=VALUE]…
       vernier profile --floor [--set run.threads=N]

Trains the first steps of a run under LibTorch's profiler. Prints a table of where their time goes, and writes a trace
for https://ui.perfetto.dev.

  --floor                measures how fast this machine multiplies and moves memory, with one thread and with all, and
                         keeps it for `sol` of callback/mfu; takes about 10 seconds, in which nothing else should run
  --steps N              the steps that are recorded (20)
  --output FILE          the trace (profile.json); a file that is there is kept
  --force                replaces it
  The options of `vernier train` that change a configuration; see vernier train --help.
)";

constexpr std::int64_t warm_up = 4;  // steps before those that are recorded

Value word(const std::string& text) {
  return {text, "vernier profile"};
}
Value number(std::int64_t value) {
  return {value, "vernier profile"};
}

// Reduces a configuration to the run's steps, and adds callback/profiler. The run's own callbacks stay, because their
// listeners are a part of its steps.
void add_profiler(Table& config, std::int64_t steps, const std::string& trace) {
  for (const std::string role : {Monitor::role, Checkpoint::role}) leave_out(config, role);
  config.insert_or_assign(Checkpoint::role, Value{Table{{"use", word("none")}}, "vernier profile"});
  auto& run = std::get<Table>(config.try_emplace("run", Value{Table{}, ""}).first->second.data);
  run.insert_or_assign("validate_every", number(0));
  for (const char* key : {"time_limit", "requeue", "resume"}) run.erase(key);
  auto& callbacks = config.try_emplace(Callback::role, Value{Array{}, ""}).first->second;
  if (auto* all = std::get_if<Array>(&callbacks.data)) {  // anything else is refused by prepare()
    Table profiler = {{"use", word("profiler")},
                      {"first_step", number(warm_up + 1)},
                      {"steps", number(steps)},
                      {"trace", word(trace)}};
    all->push_back({std::move(profiler), "vernier profile"});
  }
}

// Trains one step of a small run with callback/mfu, which measures before it.
int measure_floor(const boost::program_options::variables_map& given) {
  if (!words_of(given).empty()) refuse("--floor measures the machine and no run; leave the files out");
  const ScratchFolder scratch;
  const auto file = scratch.path() + "/floor.toml";
  std::ofstream(file) << "[run]\nsteps = 1\ndevice = 'cpu'\noutput = '" << scratch.path()
                      << "/run'\n[task]\nuse = 'mlp'\n"
                      << "[optimizer]\nuse = 'sgd'\nlearning_rate = 0.1\n[checkpoint]\nuse = 'none'\n"
                      << "[[callback]]\nuse = 'mfu'\nmeasure_floor = true\n";
  const auto config = load_config({file}, words_in(given, "set"));
  const auto prepared =
      vernier::prepare(config, "floor", make_host(given), stop_signal(), [](const auto&...) { return false; });
  prepared->run.quiet = true;
  prepared->trainer.train_step(prepared->run);
  return 0;
}

int profile(const boost::program_options::variables_map& given) {
  if (given.count("floor") != 0) return measure_floor(given);
  if (wants_to_resume(given)) refuse("profile trains the first steps of a new run; leave --resume out");
  const auto value = parse_value(word_or(given, "steps", "20"), "--steps");
  const auto* steps = std::get_if<std::int64_t>(&value.data);
  if (steps == nullptr || *steps < 1 || *steps > 1000) refuse("--steps must be an integer from 1 to 1000");
  const auto trace = word_or(given, "output", "profile.json");
  refuse_output(given, trace);
  WholeFile file(fs::absolute(trace));
  const ScratchFolder scratch;
  listen_for_signals();
  set_log_level(static_cast<int>(Level::error));  // `vernier check` has the rest
  const auto prepared = prepare(given, [&](Table& config) { add_profiler(config, *steps, file.part()); });
  prepared->run.output = scratch.path();
  prepared->run.quiet = true;
  auto& run = prepared->run;
  try {
    while (run.step < warm_up + *steps && stop_signal() == 0 && prepared->trainer.train_step(run)) {
    }
  } catch (const Error& error) {
    std::string text = error.what();
    c10::ReplaceAll(text, file.part().c_str(), trace.c_str());
    throw Error(text, error.kind());
  }
  std::ifstream table(scratch.path() + "/profile.txt");
  if (!table) {
    throw Error(c10::str("the run ended after ", run.step, " steps, before the ", *steps, " that follow the first ",
                         warm_up, " were recorded; give fewer with --steps"));
  }
  file.finish();
  std::cout << table.rdbuf() << "trace: " << trace << " (open it in https://ui.perfetto.dev)\n";
  return 0;
}

}  // namespace

int call_profile(int argc, char** argv) {
  namespace po = boost::program_options;
  auto options = configuration_options();
  options.add_options()("steps", po::value<std::string>())("output", po::value<std::string>())("force", "")("floor",
                                                                                                            "");
  return call_run_verb({"profile", usage, options, profile}, argc, argv);
}

}  // namespace vernier
