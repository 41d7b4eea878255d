#include "trained_run.h"

#include <vernier/checkpoint_folder.h>
#include <vernier/data/predictor.h>
#include <vernier/error.h>
#include <vernier/foreign_code.h>

#include <algorithm>
#include <filesystem>
#include <optional>

#include "cli/command.h"
#include "common/config/config.h"
#include "common/config/recorded_configuration.h"
#include "common/config/shorthands.h"
#include "common/log.h"
#include "common/own_runs.h"
#include "output/recorded_run.h"
#include "run/state/snapshot.h"
#include "wiring/swap.h"

namespace vernier {

namespace fs = std::filesystem;
namespace po = boost::program_options;

namespace {

// A task that keeps nothing of its data in checkpoints reads words and classes from them. Other data may give others.
// One that keeps such facts is evaluated on the same held-out data.
void require_same_data(const std::string& path, const State& snapshot, const Plugin& task, bool has_facts) {
  const auto before = snapshot.part("plugin/" + task.id()), now = task.save();
  for (const auto& [key, what] : {std::pair{"data", "training"}, {"held_out", "held-out"}}) {
    if (has_facts && key == std::string("data")) continue;
    if (!before.has(key) || !now.has(key) || before.text(key) == now.text(key)) continue;
    refuse(path + ": the " + what + " data have changed since this checkpoint was saved: then " + before.text(key) +
           ", now " + now.text(key) + "; put the run's files back, or name them with --set task.KEY=FILE");
  }
}

// Gives the task what training learned of its data, and returns true, if it keeps such facts. "example/" and "targets/"
// are facts that SupervisedTask keeps by itself.
bool give_learned(const State& snapshot, Task& task, bool reads_data) {
  const auto saved = snapshot.part("plugin/" + task.id());
  auto* supervised = dynamic_cast<SupervisedTask*>(&task);
  if (supervised == nullptr) {
    auto* model = dynamic_cast<TrainedModel*>(&task);
    if (model != nullptr) model->use_trained(saved, reads_data);
    return model != nullptr;
  }
  auto learned = saved.part("learned");
  const bool has_facts = std::ranges::any_of(learned.tensors, [](const auto& entry) {
    return !entry.first.starts_with("example/") && !entry.first.starts_with("targets/");
  });
  if (has_facts) supervised->use_learned(std::move(learned), reads_data);
  return has_facts;
}

// Puts in the precision, the scaler that it needs, and the optimizer that the run had swapped in by then.
void swap_what_computes(const State& snapshot, Prepared& prepared) {
  if (!snapshot.has("trainer/swaps")) return;
  const auto saved = parse_toml(snapshot.text("trainer/swaps"), "the checkpoint");
  auto tables = std::get<Table>(saved.at("tables").data);
  std::erase_if(tables, [](const auto& each) {
    return each.first != Precision::role && each.first != Scaler::role && each.first != Optimizer::role;
  });
  if (!tables.empty()) swap(*prepared.wiring, prepared.run, tables);
}

}  // namespace

std::unique_ptr<Prepared> load_run(const std::string& path, const std::vector<std::string>& sets, const Host& host,
                                   const std::atomic<int>& stop, Use use) {
  set_log_level(static_cast<int>(Level::warning));
  const auto file = cli::configuration_at(path);
  const ForeignRun others(foreign(fs::path(file).parent_path()));
  auto config = load_config({file}, sets);
  leave_out(config, Monitor::role);
  leave_out(config, Accumulation::role);  // it may ask for a batch to train on
  std::optional<State> snapshot;
  bool has_facts = false;
  const auto read = [&](const Wiring& wiring, const RunOptions&, const std::string& output) {
    TrainerRun run;
    run.output = output;
    snapshot = read_snapshot(*wiring.checkpoint, run, path);
    if (!snapshot) refuse(path + ": there is no checkpoint in this run");
    has_facts = give_learned(*snapshot, *wiring.task, use != Use::model);
    return true;
  };
  auto prepared = prepare(std::move(config), "run", host, stop, read, 0, {}, Purpose::use);
  const auto* task = dynamic_cast<const SupervisedTask*>(prepared->wiring->task.get());
  const bool is_chosen = task != nullptr && task->learned().has("named/contents");  // by NamedData, which has looked
  if (task != nullptr && use != Use::other_data && !is_chosen) require_same_data(path, *snapshot, *task, has_facts);
  try {
    swap_what_computes(*snapshot, *prepared);
    prepared->trainer.validation().load(snapshot->part("trainer"));
    restore_weights(std::move(*snapshot), prepared->run, prepared->wiring->plugins());
  } catch (...) {
    rethrow_of_run(path, Error::Kind::configuration);
  }
  return prepared;
}

std::string folder_of_run(const std::string& path) {
  return fs::path(cli::configuration_at(path)).parent_path().string();
}

void choose_weights(Prepared& prepared, const po::variables_map& given) {
  const auto which = word_or(given, "weights", "average");
  if (which != "average" && which != "model") {
    refuse("--weights is " + shortened(which) + ", and must be average or model");
  }
  if (which == "model") return prepared.trainer.validation().leave_averages_out();
  if (given.count("weights") != 0 && prepared.trainer.validation().average(prepared.run).by.empty()) {
    refuse("--weights average: this run has no average of the weights; leave it out");
  }
}

std::string weights_in(Prepared& prepared, const std::string& path) {
  auto& validation = prepared.trainer.validation();
  const auto by = validation.average(prepared.run).by;
  const auto step = validation.step_of_weights(prepared.run);
  std::string text;
  const auto add = [&](const std::string& what) { text += (text.empty() ? ", with " : " and ") + what; };
  if (step != prepared.run.step) add(c10::str("the best weights, of step ", step));
  if (!by.empty() && !validation.leaves_averages_out()) add("the average of " + by + " (--weights model: without)");
  if (!by.empty() && validation.leaves_averages_out()) text += ", without the average of " + by;
  std::error_code none;
  const auto best = (fs::path(path) / "checkpoints/best").string();
  const auto best_step = step_of_checkpoint(fs::read_symlink(best, none).string());
  if (best_step >= 0 && best_step != step) text += c10::str("; ", best, " has the best weights, of step ", best_step);
  return text;
}

RunCall run_of(const po::variables_map& given, const std::string& example) {
  const auto words = words_of(given);
  if (words.empty()) refuse("name a run or a checkpoint, as in `" + example + "`");
  if (words.size() > 1) refuse(given["verb"].as<std::string>() + " takes one run, and " + words[1] + " is a second");
  auto sets = words_in(given, "set");
  const bool has_scaler = merge_config({cli::configuration_at(words[0])}, {}).contains("scaler");
  const auto more = sets_of_shorthands(given, sets, has_scaler);
  sets.insert(sets.end(), more.begin(), more.end());
  return {words[0], sets};
}

std::unique_ptr<Prepared> load_run(const RunCall& call, const po::variables_map& given, Use use) {
  const auto host = cli::make_host(given);
  cli::listen_for_signals();
  auto prepared = load_run(call.path, call.sets, host, cli::stop_signal(), use);
  choose_weights(*prepared, given);
  return prepared;
}

std::string needed(const po::variables_map& given, const char* option, const std::string& example) {
  if (given.count(option) == 0) refuse(std::string("--") + option + " is missing, as in `" + example + "`");
  return given[option].as<std::string>();
}

SupervisedTask& supervised(const Prepared& prepared, const char* verb) {
  auto* task = dynamic_cast<SupervisedTask*>(prepared.wiring->task.get());
  if (task != nullptr) return *task;
  refuse(std::string(verb) + " is for tasks with data and a loss, such as task/tabular, and " +
         prepared.wiring->task->id() + " keeps both to itself; see docs/start/train-your-own.md");
}

}  // namespace vernier
