// `vernier check`: all of a run but its training, and a learning-rate range test.
#include <vernier/error.h>
#include <vernier/sampler.h>

#include <algorithm>
#include <csignal>
#include <iostream>
#include <optional>

#include "cli/command.h"
#include "cli/program.h"
#include "common/log.h"
#include "common/text/numbers.h"
#include "dry_run.h"
#include "find_lr.h"
#include "layer_table.h"
#include "output/recorded_run.h"

namespace vernier {

using namespace cli;

// The mains of two more verbs. This program runs them if it is called vernier-profile or vernier-schema.
int call_profile(int argc, char** argv);
int call_schema(int argc, char** argv);

namespace {

constexpr const char* usage = R"(usage: vernier check FILE… [--set KEY=VALUE]… [--find-lr]
       vernier check PLUGIN.so [--set KEY=VALUE]…

All of a run but the training: plugins, data, device, the model by layers with shapes and parameters, one batch without
an update, its memory, advice. With a library of a plugin, tries the laws of plugins on it; see vernier check PLUGIN.so
--help.

  --savings              prints only by how many bytes the peak memory of a step is below that of one in float32
  --advice               prints only the advice, a line each
  --options              only makes the plugins, and checks their options against each other; reads no data
  --resume[=PATH]        only says whether the run may go on: with the configuration, data and files of its checkpoint
  --find-lr              also trains a copy of the model for 100 steps at ever higher learning rates, plots the loss,
                         and suggests a rate
  The options of `vernier train`; see vernier train --help.
)";

// Returns the dry run of the same run in float32, to compare a policy with; nothing, with a warning, if it fails.
std::optional<DryRun> dry_run_in_float32(const po::variables_map& given) {
  set_log_level(static_cast<int>(Level::error));  // all of it is logged already
  std::optional<DryRun> seen;
  std::string trouble;
  try {
    const auto prepared = prepare(given, [](Table& config) {
      config.erase(Precision::role);
      config.erase(Scaler::role);
    });
    seen = dry_run(prepared->trainer, *prepared->wiring, prepared->run);
  } catch (...) {
    trouble = caught().message;
  }
  set_log_level(static_cast<int>(log_level(given)));
  if (!seen) log(Level::warning, "check", "cannot compare with float32, because the float32 run failed: " + trouble);
  return seen;
}

// Says how large a batch fits into the memory that float32 needs: what is saved, by what a sample takes. "": no larger.
std::string batch_text(const std::string& policy, const DryRun& low, const DryRun& full) {
  const auto of_batch = low.memory.bytes("activations") + low.memory.bytes("batch");
  const auto saved = full.memory.peak - low.memory.peak;
  if (low.micro_batch_samples != low.samples || of_batch <= 0 || saved <= 0) return "";
  const double factor = 1 + static_cast<double>(saved) / static_cast<double>(of_batch);
  return c10::str("in the memory of float32, ", policy, " computes about ", print_number("%.3g", factor),
                  " times the batch\n");
}

void print_dry_run(const std::string& policy, const DryRun& dry_run, const std::optional<DryRun>& in_float32) {
  std::cout << "on the first batch: loss " << print_number("%.5g", dry_run.loss);
  std::vector<std::pair<std::string, MemoryUse>> columns;
  if (in_float32) {
    std::cout << ", in float32 " << print_number("%.5g", in_float32->loss);
    columns.emplace_back(Precision::standard, in_float32->memory);
  }
  columns.emplace_back(policy, dry_run.memory);
  std::cout << '\n';
  const bool has_state = dry_run.memory.bytes("optimizer") > 0;
  print_text(memory_table(columns) +
             (has_state ? "" : "  an optimizer's state may come with its first step: see callback/memory\n"));
  if (in_float32) print_text(batch_text(policy, dry_run, *in_float32));
  for (const auto& line : advise(dry_run, in_float32)) print_text("advice: " + line + '\n');
}

// The memory that each rank keeps for itself; "" if there is one rank.
std::string memory_of_ranks(TrainerRun& run, const MemoryUse& here) {
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

void check_run(const po::variables_map& given) {
  auto prepared = prepare(given);
  print_wiring(*prepared, "");
  std::cout.flush();
  const auto precision = prepared->wiring->precision->id();
  const bool is_alone = prepared->run.control->ranks() == 1;
  const auto seen = dry_run(prepared->trainer, *prepared->wiring, prepared->run);
  print_text(layer_table(prepared->run, seen.operations));
  const auto of_ranks = memory_of_ranks(prepared->run, seen.memory);
  const auto validation_loss = rehearse(prepared->trainer, prepared->run);
  const auto batches = prepared->wiring->task->batches_per_epoch();
  const auto drawn = read_epoch(prepared->trainer, prepared->run);
  prepared.reset();  // two models at once may be too many
  std::optional<DryRun> in_float32;
  if (seen.is_low && is_alone) in_float32 = dry_run_in_float32(given);  // the ranks meet once
  print_dry_run(precision.substr(precision.find('/') + 1), seen, in_float32);
  std::cout << of_ranks;
  if (validation_loss) std::cout << "in a validation: loss " << print_number("%.4f", *validation_loss) << '\n';
  if (drawn < batches && batches != endless) {
    print_text(c10::str("of the data, ", drawn, " of ", batches, " batches of an epoch were read; the others may have ",
                        "what cannot be read\n"));
  }
  std::cout << "ready: nothing was trained or written\n";
}

// Changes a run to one that trains a few steps and leaves nothing.
void keep_nothing(Table& config) {
  config.erase(Monitor::role);
  config.insert_or_assign(Checkpoint::role, Value{Table{{"use", {std::string("none"), ""}}}, ""});
}

void find_learning_rate(const po::variables_map& given) {
  set_log_level(static_cast<int>(Level::error));  // all of it is logged already
  const auto prepared = prepare(given, keep_nothing);
  if (prepared->run.control->ranks() > 1) refuse("--find-lr trains a copy of the model in one process only");
  std::cout << plot(test_rates(prepared->trainer, *prepared->wiring, prepared->run));
}

void print_savings(const po::variables_map& given) {
  set_log_level(static_cast<int>(Level::error));
  auto prepared = prepare(given);
  if (prepared->run.control->ranks() > 1) refuse("--savings is for a single process");
  const auto seen = dry_run(prepared->trainer, *prepared->wiring, prepared->run);
  prepared.reset();
  if (!seen.is_low) refuse("--savings: the first step computes in no fewer bits than float32, so nothing is compared");
  const auto in_float32 = dry_run_in_float32(given);
  if (!in_float32) refuse("--savings: the run in float32 failed; `vernier check` says why");
  std::cout << in_float32->memory.peak - seen.memory.peak << '\n';
}

void print_advice(const po::variables_map& given) {
  set_log_level(static_cast<int>(Level::error));
  auto prepared = prepare(given);
  const bool is_alone = prepared->run.control->ranks() == 1;
  const auto seen = dry_run(prepared->trainer, *prepared->wiring, prepared->run);
  prepared.reset();
  const auto in_float32 = seen.is_low && is_alone ? dry_run_in_float32(given) : std::nullopt;
  for (const auto& line : advise(seen, in_float32)) print_text(line + '\n');
}

void check_resume(const po::variables_map& given) {
  const auto prepared = prepare(given);
  const auto from = word_or(given, "resume", "");
  resume(*prepared, from, given.count("allow-inexact") != 0);
  const auto& run = prepared->run;
  print_text(c10::str("ready: ", from.empty() ? run.output : from, " goes on after step ", run.step, '\n'));
}

int check(const po::variables_map& given) {
  std::vector<std::string> modes = {"options", "savings", "advice", "find-lr"};
  const auto first = std::ranges::find_if(modes, [&](const auto& each) { return given.count(each) != 0; });
  const std::string mode = wants_to_resume(given) ? "resume" : first == modes.end() ? "" : *first;
  std::erase(modes, mode);
  refuse_unread(given, "check --" + mode, modes);
  if (mode == "options") {
    stop_signal() = SIGTERM;  // a run that is asked to stop is wired, and reads nothing
    (void)prepare(given);
  } else if (mode == "savings") {
    print_savings(given);
  } else if (mode == "advice") {
    print_advice(given);
  } else if (mode == "resume") {
    check_resume(given);
  } else {
    check_run(given);
    if (mode == "find-lr") find_learning_rate(given);
  }
  return 0;
}

}  // namespace

}  // namespace vernier

int main(int argc, char** argv) {
  const auto called = std::filesystem::path(argv[0]).filename();
  if (called == "vernier-profile") return vernier::call_profile(argc, argv);
  if (called == "vernier-schema") return vernier::call_schema(argc, argv);
  auto options = vernier::configuration_options();
  options.add_options()("find-lr", "")("savings", "")("advice", "")("options", "");
  return vernier::call_run_verb({"check", vernier::usage, options, vernier::check}, argc, argv);
}
