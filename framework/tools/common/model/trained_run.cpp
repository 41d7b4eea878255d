#include "trained_run.h"

#include <vernier/error.h>

#include <filesystem>

#include "cli/command.h"
#include "cli/shorthands.h"
#include "output/log.h"
#include "run/state/snapshot.h"
#include "wiring/config.h"

namespace vernier {

namespace fs = std::filesystem;
namespace po = boost::program_options;

namespace {

// The configuration of the run at a path, or of the run whose checkpoint is there.
std::string configuration_at(const fs::path& path) {
  std::error_code none;
  if (!fs::exists(path, none)) refuse(path.string() + ": there is no such run or checkpoint");
  const auto folder = fs::absolute(path).lexically_normal();
  for (const auto& candidate : {folder, folder.parent_path(), folder.parent_path().parent_path()}) {
    if (fs::exists(candidate / "config.toml", none)) return (candidate / "config.toml").string();
  }
  refuse(path.string() + ": is neither a run nor a checkpoint of one: there is no config.toml");
}

// Words, classes and the columns of a table are read from the run's data. Other data may give them other codes.
void require_same_data(const std::string& path, const State& snapshot, const Plugin& task) {
  const auto before = snapshot.part("plugin/" + task.id()), now = task.save();
  for (const auto& [key, what] : {std::pair{"data", "training"}, {"held_out", "held-out"}}) {
    if (!before.has(key) || !now.has(key) || before.text(key) == now.text(key)) continue;
    refuse(path + ": the " + what + " data have changed since this checkpoint was saved: then " + before.text(key) +
           ", now " + now.text(key) + "; put the run's files back, or name them with --set task.KEY=FILE");
  }
}

}  // namespace

std::unique_ptr<Prepared> load_run(const std::string& path, const std::vector<std::string>& sets, const Host& host,
                                   const std::atomic<int>& stop, bool allow_other_data) {
  set_log_level(static_cast<int>(Level::warning));
  auto config = load_config({configuration_at(path)}, sets);
  config.erase(Monitor::role);
  auto prepared = prepare(std::move(config), "run", host, stop, [](auto&&...) { return true; });
  auto snapshot = prepared->wiring->checkpoint->read(prepared->run, path);
  if (!snapshot) refuse(path + ": there is no checkpoint in this run");
  const auto& task = *prepared->wiring->task;
  if (dynamic_cast<const SupervisedTask*>(&task) != nullptr && !allow_other_data) {
    require_same_data(path, *snapshot, task);
  }
  try {
    restore_weights(std::move(*snapshot), prepared->run, prepared->wiring->plugins());
  } catch (...) {
    rethrow_naming(path, "", Error::Kind::configuration);
  }
  return prepared;
}

RunCall run_of(const po::variables_map& given, const std::string& example) {
  const auto words = words_of(given);
  if (words.empty()) refuse("name a run or a checkpoint, as in `" + example + "`");
  if (words.size() > 1) refuse(given["verb"].as<std::string>() + " takes one run, and " + words[1] + " is a second");
  auto sets = words_in(given, "set");
  const auto more = sets_of_shorthands(given, sets, true);
  sets.insert(sets.end(), more.begin(), more.end());
  return {words[0], sets};
}

std::unique_ptr<Prepared> load_run(const RunCall& call, const po::variables_map& given, bool allow_other_data) {
  const auto host = cli::make_host(given);
  cli::listen_for_signals();
  return load_run(call.path, call.sets, host, cli::stop_signal(), allow_other_data);
}

std::string needed(const po::variables_map& given, const char* option, const std::string& example) {
  if (given.count(option) == 0) refuse(std::string("--") + option + " is missing, as in `" + example + "`");
  return given[option].as<std::string>();
}

SupervisedTask& supervised(const Prepared& prepared, const char* verb) {
  auto* task = dynamic_cast<SupervisedTask*>(prepared.wiring->task.get());
  if (task != nullptr) return *task;
  refuse(std::string(verb) + " is for tasks that are built on SupervisedTask, and " + prepared.wiring->task->id() +
         " is not; see docs/train-your-own.md");
}

}  // namespace vernier
