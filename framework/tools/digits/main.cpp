// `vernier digits`: how many digits of a step's loss, gradients and updates are significant.
#include <vernier/error.h>

#include <algorithm>
#include <charconv>
#include <cstdint>

#include "cli/command.h"
#include "cli/program.h"
#include "common/config/shorthands.h"
#include "common/log.h"
#include "common/scratch_folder.h"
#include "run_digits.h"
#include "step_digits.h"
#include "tools/replay/replayed_run.h"

namespace vernier {

using namespace cli;

namespace {

constexpr const char* usage = R"(usage: vernier digits FILE… [--step N] [--samples N] [--set KEY=VALUE]…
       vernier digits RUN --step N [--samples N]
       vernier digits FILE… --steps N [--samples N] [--set KEY=VALUE]…

Runs a step several times, each time with random last bits in the results of all operators, and prints how many decimal
digits of the loss and of each layer's output, gradient and update stay the same, and where digits are lost first. Of
TOML files it trains the steps before it; of a run it loads the newest checkpoint before it. Nothing is written.

With --steps it trains the first steps several times so, and prints how far apart equal runs come.

  --step N               the step, counted from 1 (1)
  --steps N              trains so many steps in each sample, instead of one step
  --samples N            how often the step is run, at least 3 (10); of --steps: the runs (5)
  --json                 prints JSON, with all operators of the forward pass
  The options of `vernier train` that change a configuration; see vernier train --help.
)";

struct Wanted {
  std::int64_t step, samples;
};

std::int64_t number_of(const po::variables_map& given, const char* option, const char* fallback, std::int64_t least,
                       std::int64_t most, const char* why) {
  const auto text = word_or(given, option, fallback);
  std::int64_t number = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (error == std::errc() && end == text.data() + text.size() && number >= least && number <= most) return number;
  refuse("--" + std::string(option) + " " + text + ": give an integer from " + std::to_string(least) +
         (most < INT64_MAX ? " to " + std::to_string(most) : " up") + "; " + why);
}

// Reduces a configuration to the run's steps. Its callbacks stay, because their listeners are a part of its steps.
void keep_steps(Table& config) {
  for (const std::string role : {Monitor::role, Checkpoint::role}) leave_out(config, role);
  config.insert_or_assign(Checkpoint::role, Value{Table{{"use", {std::string("none"), ""}}}, ""});
  // The measurements of precision/format would get random bits too.
  const auto precision = config.find(Precision::role);
  auto* policy = precision == config.end() ? nullptr : std::get_if<Table>(&precision->second.data);
  if (policy != nullptr) policy->erase("measure_every");
  const auto run = config.find("run");
  auto* table = run == config.end() ? nullptr : std::get_if<Table>(&run->second.data);
  if (table == nullptr) return;
  for (const char* key : {"time_limit", "requeue", "resume"}) table->erase(key);
}

void refuse_what_cannot_be_sampled(const Run& run, std::int64_t step, const char* option = "--step ") {
  if (!run.device.is_cpu()) refuse("digits are computed on the CPU: name a TOML file, with --set run.device=cpu");
  if (run.control->ranks() > 1) refuse("digits are those of a single process");
  if (step <= run.steps) return;
  refuse(c10::str(option, step, ": the run has ", steps_text(run.steps), ", so there is no step ", step));
}

// Writes into the scratch folder.
std::unique_ptr<Prepared> prepare_new_run(const po::variables_map& given, const ScratchFolder& scratch,
                                          std::int64_t last_step, const char* option) {
  auto prepared = prepare(given, keep_steps);
  refuse_what_cannot_be_sampled(prepared->run, last_step, option);
  prepared->run.output = scratch.path();
  prepared->run.quiet = true;
  return prepared;
}

StepDigits digits_of_files(const po::variables_map& given, const Wanted& wanted) {
  if (wants_to_resume(given)) {
    refuse("digits trains the steps of a new run; name the folder of a run instead of --resume");
  }
  const ScratchFolder scratch;
  const auto prepared = prepare_new_run(given, scratch, wanted.step, "--step ");
  auto& run = prepared->run;
  while (run.step < wanted.step - 1) {
    const bool is_trained = prepared->trainer.train_step(run);
    if (stop_signal() != 0) throw Error("stopped by a signal");
    if (!is_trained) throw Error(c10::str("the run ends after ", steps_text(run.step), ", before step ", wanted.step));
  }
  return digits_of_step(*prepared, wanted.samples, stop_signal());
}

StepDigits digits_of_run(const po::variables_map& given, const std::string& path, const Wanted& wanted) {
  auto changes = shorthands_given(given, {});
  for (const char* option : {"set", "resume", "allow-inexact", "low-memory"}) {
    if (given.count(option) != 0 && !given[option].defaulted()) changes.push_back(std::string("--") + option);
  }
  if (!changes.empty()) {
    refuse(changes.front() + " changes a TOML file, and " + path + " is a run; name its config.toml");
  }
  ReplayedRun replayed(path, make_host(given), stop_signal());
  replayed.refuse_later_than(wanted.step);
  replayed.start_before(wanted.step, [](std::int64_t) { return Look::digests; });
  refuse_what_cannot_be_sampled(replayed.prepared().run, wanted.step);
  replayed.go_to(wanted.step - 1);
  return digits_of_step(replayed.prepared(), wanted.samples, stop_signal());
}

// --steps.
int print_run(const po::variables_map& given, std::int64_t steps, std::int64_t samples) {
  if (given.count("step") != 0) refuse("--steps trains a run, and --step names one step; give one of the two");
  if (wants_to_resume(given) || std::ranges::any_of(words_of(given), is_run)) {
    refuse("--steps trains the first steps of a new run; name its TOML files, or the config.toml of the run");
  }
  const ScratchFolder scratch;
  const auto prepare = [&] { return prepare_new_run(given, scratch, steps, "--steps "); };
  print_result([&] {
    const auto digits = digits_of_runs(prepare, steps, samples, stop_signal());
    return given.count("json") != 0 ? json_of(digits) : text_of(digits);
  });
  return 0;
}

int call(const po::variables_map& given) {
  constexpr std::int64_t least = 3, most = 1000;
  const bool is_run_wanted = given.count("steps") != 0;
  const Wanted wanted{number_of(given, "step", "1", 1, INT64_MAX, "the first step is 1"),
                      number_of(given, "samples", is_run_wanted ? "5" : "10", least, most,
                                "at least 3 samples are needed to estimate the spread")};
  listen_for_signals();
  set_log_level(static_cast<int>(Level::error));  // `vernier check` has the rest
  if (is_run_wanted) {
    return print_run(given, number_of(given, "steps", "", 1, INT64_MAX, "a run has a step at least"), wanted.samples);
  }
  const auto paths = words_of(given);
  const bool has_run = paths.size() == 1 && is_run(paths.front());
  print_result([&] {
    const auto digits = has_run ? digits_of_run(given, paths.front(), wanted) : digits_of_files(given, wanted);
    return given.count("json") != 0 ? json_of(digits) : text_of(digits);
  });
  return 0;
}

}  // namespace

}  // namespace vernier

int main(int argc, char** argv) {
  namespace po = boost::program_options;
  auto options = vernier::configuration_options();
  options.add_options()("step", po::value<std::string>())("steps", po::value<std::string>())(
      "samples", po::value<std::string>())("json", "");
  return vernier::call_run_verb({"digits", vernier::usage, options, vernier::call}, argc, argv);
}
