#include "replayed_run.h"

#include <vernier/checkpoint_folder.h>
#include <vernier/checkpoint_split.h>
#include <vernier/error.h>
#include <vernier/roles.h>

#include <algorithm>
#include <charconv>

#include "common/config/config.h"
#include "common/log.h"
#include "common/own_runs.h"
#include "wiring/wiring.h"

namespace vernier {

namespace fs = std::filesystem;

namespace {

RunFiles files_of(const fs::path& folder) try { return read_run(folder); } catch (const Refused& refused) {
  refuse(refused.what());
}

// Returns the configuration of the run's start, without the parts of its process: its folder, monitors and time.
Table configuration_of(const fs::path& folder) {
  const auto file = (folder / "config.toml").string();
  if (!fs::exists(file)) refuse(file + ": is not there; it has the configuration with which the run is built again");
  auto config = load_config({file}, {});
  config.erase(Monitor::role);
  config.insert_or_assign(Checkpoint::role, Value{Table{{"use", {std::string("none"), file}}}, file});
  if (const auto run = config.find("run"); run != config.end()) {
    for (const char* key : {"memory_limit", "time_limit", "requeue", "resume", "output"}) {
      std::get<Table>(run->second.data).erase(key);
    }
  }
  return config;
}

// The newest checkpoint that is older than the step; "" if there is none.
std::string checkpoint_before(const std::string& run, std::int64_t step) {
  for (const auto& path : checkpoints_in(run + "/checkpoints")) {
    if (step_of_checkpoint(path) < step && is_checkpoint(path)) return path;
  }
  return "";
}

std::int64_t number_of(std::string_view text, const std::string& whole) {
  std::int64_t number = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (error != std::errc() || end != text.data() + text.size() || number < 1) {
    refuse("--step " + whole + ": write a step, --step 350, or a range of steps, --step 300..350; the first step is 1");
  }
  return number;
}

}  // namespace

Steps steps_of(const std::string& text) {
  const auto dots = text.find("..");
  if (dots == std::string::npos) return {number_of(text, text), number_of(text, text)};
  const Steps steps{number_of(text.substr(0, dots), text), number_of(text.substr(dots + 2), text)};
  if (steps.last < steps.first) refuse("--step " + text + ": its end is before its beginning");
  return steps;
}

ReplayedRun::ReplayedRun(const fs::path& folder, const Host& host, const std::atomic<int>& stop, Needs needs)
    : others_(foreign(folder)),
      name_(folder.string()),
      files_(files_of(folder)),
      host_(host),
      stop_(stop),
      config_(configuration_of(folder)) {
  const auto ranks = files_.summary.is_object() ? files_.summary.value("ranks", 1) : 1;
  if (needs == Needs::batches) config_.erase(Distributed::role);
  if (ranks == 1 || needs == Needs::batches) return;
  refuse(c10::str(name_, ": ", ranks, " processes trained this run, and one process cannot repeat their bits"));
}

std::optional<double> ReplayedRun::loss_of(std::int64_t step) const {
  const auto* losses = files_.find("loss");
  if (losses == nullptr) return std::nullopt;
  const auto found = std::ranges::find(losses->points.rbegin(), losses->points.rend(), step, &Point::step);
  return found == losses->points.rend() ? std::nullopt : std::optional(found->value);
}

void ReplayedRun::refuse_later_than(std::int64_t step) const {
  if (files_.step >= step) return;
  refuse(c10::str(name_, ": the run has ", files_.step, " steps, so there is no step ", step));
}

std::int64_t ReplayedRun::start_before(std::int64_t step, StepRecorder::Looks looks) {
  prepared_.reset();
  const auto path = checkpoint_before(name_, step);
  std::optional<State> snapshot;
  if (!path.empty()) snapshot = join_snapshot(read_checkpoint(path));
  // Another number of threads gives other bits.
  std::int64_t threads = files_.summary.is_object() ? files_.summary.value("threads", 0) : 0;
  if (snapshot) threads = snapshot->integer("run/threads");
  set_log_level(static_cast<int>(Level::error));  // plugins reported the rest in the run
  prepared_ = build_again(config_, name_, snapshot.has_value(), threads, host_, stop_);
  prepared_->run.output = scratch_.path();
  prepared_->run.replayed_from = name_;
  prepared_->run.quiet = true;
  recorder_ = std::make_unique<StepRecorder>(std::move(looks));
  HostApi::attach(prepared_->wiring->bus, *recorder_, false);
  if (!snapshot) return 0;
  set_log_level(static_cast<int>(Level::warning));  // how this machine differs from the run's
  prepared_->trainer.resume(prepared_->run, std::move(*snapshot), /*allow_inexact=*/true);
  set_log_level(static_cast<int>(Level::error));
  return prepared_->run.step;
}

const StepView& ReplayedRun::advance() {
  const auto step = prepared_->run.step + 1;
  const bool is_trained = prepared_->trainer.train_step(prepared_->run);
  if (stop_ != 0) throw Error("stopped by a signal");
  if (!is_trained) throw Error(c10::str(name_, ": here the run ends before step ", step));
  return recorder_->last();
}

const StepView& ReplayedRun::go_to(std::int64_t step) {
  while (prepared_->run.step < step) advance();
  return recorder_->last();
}

Table ReplayedRun::configuration_of_last() const {
  return with_swaps(config_, recorder_->last().capsule.state, name_);
}

Replayed ReplayedRun::replay_last() {
  leave();
  const auto& capsule = recorder_->last().capsule;
  prepared_ = build_again(configuration_of_last(), name_, true, capsule.state.integer("run/threads"), host_, stop_);
  auto replayed = replay(*prepared_, capsule, /*keep_outputs=*/true);
  leave();
  return replayed;
}

std::string agreement(const ReplayedRun& replayed, const StepView& view) {
  const auto kept = replayed.loss_of(view.step);
  if (!kept) return "loss " + view.bits.loss + "; losses.jsonl has none of this step";
  const bool is_same = *kept == view.loss || (std::isnan(*kept) && std::isnan(view.loss));
  if (is_same) return "same bits: loss " + view.bits.loss + " is that of losses.jsonl";
  return c10::str("other bits: loss ", view.bits.loss, ", and losses.jsonl has ", *kept,
                  "; since this step the run was resumed with other options (a longer run changes its schedules), its "
                  "data have changed, it was trained on another machine, by another build or by compiled programs, or "
                  "its operations are not deterministic");
}

}  // namespace vernier
