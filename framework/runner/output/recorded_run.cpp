#include "recorded_run.h"

#include <vernier/foreign_code.h>

#include "common/config/config.h"
#include "common/own_runs.h"
#include "files/shards.h"
#include "status.h"
#include "summary.h"

namespace vernier {

namespace fs = std::filesystem;

namespace {

// The merged configuration; with the run's name in it, since that came from the name of another file.
std::string config_of(const Prepared& prepared) {
  Table config = prepared.config;
  auto& run = config.try_emplace("run", Value{Table{}, ""}).first->second;
  std::get<Table>(run.data)["name"] = {prepared.run.name, ""};
  return to_toml(config);
}

// With several ranks, rank 0 opens the run's folder, and each of the others opens one in it.
OutputFolder open_folder(const Prepared& prepared, const std::string& from) {
  const auto& output = prepared.run.output;
  auto& distributed = *prepared.wiring->distributed;
  if (const auto rank = distributed.rank(); rank > 0) return OutputFolder::open_part(distributed.gather("")[0], rank);
  auto& checkpoint = *prepared.wiring->checkpoint;
  if (prepared.resumes) return OutputFolder::open_existing(output, checkpoint, from);
  const bool is_started_again = prepared.options.resume == "auto";
  return OutputFolder::open_new(output, checkpoint, is_started_again ? config_of(prepared) : "");
}

// The TOML's table of a swapped role is not the one that the run uses.
void warn_of_swaps(const Prepared& prepared) {
  const auto file = prepared.run.output + "/config.toml";
  if (prepared.wiring->swaps.empty() || !fs::exists(file)) return;
  const auto before = load_config({file}, {});
  for (const auto& [role, table] : prepared.config) {
    const auto old = before.find(role);
    const bool was_swapped =
        std::ranges::any_of(prepared.wiring->swaps, [&](const auto& each) { return each.role == role; });
    if (!was_swapped || (old != before.end() && is_same(old->second, table))) continue;
    log(Level::warning, "resume", "[" + role + "] is not read: its plugin was swapped while the run ran");
  }
}

bool is_first(const Prepared& prepared) {
  return prepared.wiring->distributed->rank() == 0;
}

std::string summary_of(const Prepared& prepared) {
  return prepared.run.output + "/summary.json";
}

void write(const Prepared& prepared, const Outcome& outcome) {
  if (!is_first(prepared)) return;
  write_summary(summary_of(prepared), prepared.run, prepared.options, prepared.run_table, *prepared.wiring, outcome);
}

}  // namespace

OutputFolder open_run(Prepared& prepared, const std::string& from, bool allow_inexact,
                      const std::function<void(const std::string& path)>& log_to) {
  if (prepared.resumes && !from.empty()) resume(prepared, from, allow_inexact);  // before a folder is made
  auto folder = open_folder(prepared, from);
  auto& run = prepared.run;
  const auto opened = folder.path().string();
  log_to(opened + "/log.txt");
  run.output =
      is_first(prepared) ? prepared.wiring->distributed->gather(opened)[0] : folder.path().parent_path().string();
  if (prepared.resumes && from.empty()) resume(prepared, from, allow_inexact);
  run.output = opened;
  if (is_first(prepared) && !fs::exists(opened + "/config.toml")) note_own_run(folder.path());  // it is new
  if (!is_first(prepared)) return folder;
  prepared.status = status_file(opened + "/status.json", prepared.trainer.roles(), prepared.logs_steps);
  HostApi::attach(prepared.wiring->bus, *prepared.status, /*monitor=*/true);
  return folder;
}

std::optional<State> read_snapshot(Checkpoint& checkpoint, TrainerRun& run, const std::string& from) {
  std::error_code none;
  const bool is_run = fs::is_directory(from, none) && !checkpoint.snapshots(from).empty();
  const auto output = run.output;
  const auto put_back = c10::make_scope_exit([&] { run.output = output; });
  if (is_run) run.output = from;
  return checkpoint.read(run, is_run ? "" : from);
}

// Errors of files name the file in their text alone: it is looked for, so that no path stands there twice.
void rethrow_of_run(const std::string& path, Error::Kind otherwise) {
  try {
    throw;
  } catch (const Error& error) {
    if (std::string_view(error.what()).find(path) != std::string_view::npos) throw;
  } catch (...) {  // goes on below, where it is still in flight
  }
  rethrow_naming(path, "", otherwise);
}

void resume(Prepared& prepared, const std::string& from, bool allow_inexact) try {
  const auto read = [&] {
    const OwnPart part(prepared.run, *prepared.wiring->distributed);
    return read_snapshot(*prepared.wiring->checkpoint, prepared.run, from);
  };
  auto snapshot = read();
  if (!snapshot) {
    refuse("there is no checkpoint to resume from in " + prepared.run.output +
           "; leave --resume out to start a new run");
  }
  const ForeignRun others(foreign(from.empty() ? prepared.run.output : from));  // it may swap plugins in
  prepared.trainer.resume(prepared.run, std::move(*snapshot), allow_inexact);
} catch (...) {
  rethrow_of_run(from.empty() ? prepared.run.output : from, Error::Kind::training);
}

bool has_all_it_needs(const Prepared& prepared) {
  const Run& run = prepared.run;
  if (!prepared.resumes || !prepared.trainer.is_finished(run)) return false;
  return !is_first(prepared) || is_summary_of(summary_of(prepared), run);
}

void write_config(const Prepared& prepared) {
  if (!is_first(prepared)) return;
  if (prepared.resumes) warn_of_swaps(prepared);
  write_file(prepared.run.output + "/config.toml", config_of(prepared));
}

void summarize(const Prepared& prepared, const Outcome& outcome) {
  try {
    write(prepared, outcome);
  } catch (const Error& error) {
    throw Error(error.what() + std::string("; see to that, and resume the run to have this file written"));
  }
}

void summarize_failure(const Prepared& prepared, const Outcome& outcome, Error::Kind kind) {
  if (kind != Error::Kind::training && outcome.steps == 0) return;
  try {
    write(prepared, outcome);
  } catch (...) {
    log(Level::error, "summary.json", caught().message);  // and the run's own error is still reported
  }
}

// The run's folder stays if a folder in it is not empty, such as that of the capsule of the step that failed.
bool remove_untrained(const Prepared& prepared, const OutputFolder& folder) {
  const bool is_new = !prepared.resumes && prepared.run.step == 0 && prepared.trainer.outcome().steps == 0;
  if (!is_new || prepared.wiring->distributed->ranks() > 1) return false;
  std::error_code trouble;
  for (fs::directory_iterator entry(folder.path(), trouble), end; !trouble && entry != end; entry.increment(trouble)) {
    if (entry->is_directory(trouble) && !fs::is_empty(entry->path(), trouble)) return false;
  }
  if (!trouble) fs::remove_all(folder.path(), trouble);
  return !trouble;
}

void warn_of_divergence(const Run& run, const Outcome& outcome) {
  if (!outcome.diverged.empty()) {
    log(Level::error, "run",
        "the training has diverged: " + outcome.diverged +
            "; lower the learning rate, or have the run go back by itself (docs/guides/recovery.md)");
  }
  if (run.step > 0 && outcome.updates == 0) {
    log(Level::warning, "run", "every update was skipped: the model is as it was at the start");
  }
}

}  // namespace vernier
