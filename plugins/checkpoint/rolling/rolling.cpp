// rolling: saves the run to <run.output>/checkpoints/step-00000100, in the format of
// docs/reference/checkpoint-format.md. Keeps the newest checkpoints, those of regular steps, and the best ones.
//
//   every = 500          steps from one checkpoint to the next; 0: none by steps
//   every_minutes = 0    the same by the clock
//   at_epoch_end = false a checkpoint at the end of each epoch
//   keep_last = 3        how many of the newest stay; an older one is removed once a newer one is complete
//   keep_every = 0       checkpoints of steps that are multiples of this stay for good
//   keep_best = 0        how many of the best stay; a validation that is among the best is saved at once
//   metric = "validation_loss"   the metric of a validation that decides which is best
//   mode = "auto"        min | max: which value is best; auto: as the metric has it, such as the highest of accuracy
//   async = true         the state is copied after the step, which needs its size in memory, and written during the
//                        training. On a GPU, or if a core is free, the optimizer's memory is copied during the next
//                        forward pass.
//   in_flight = "wait"   if the last checkpoint is still being written: wait for it, or "skip" this one with a notice
//   on_failure = "stop"  a save that fails in the background is repeated at the next step, which waits for it. If that
//                        fails too, the run ends. With "continue" the next save tries again.
//
// A run writes a last checkpoint when it ends, when a signal stops it, and when it fails between two steps or before
// the update of a step. It waits until the checkpoint is on the disk, and fails if it cannot be written. `latest` and
// `best` are links. If a run resumes from a checkpoint before its newest, the later ones become
// abandoned-step-00000200. Ranks that share out the optimizer's state (distributed/zero1, zero3) each write their part;
// if one cannot, the save is not repeated.
#include <ATen/ops/tensor.h>
#include <vernier/checkpoint_split.h>
#include <vernier/draft/capture.h>
#include <vernier/error.h>
#include <vernier/roles.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cmath>
#include <filesystem>
#include <functional>
#include <future>
#include <memory>
#include <thread>
#include <utility>

#include "copies.h"
#include "folder.h"
#include "shared/judged_metric.h"

namespace {

namespace fs = std::filesystem;
using rolling::Folder;
using rolling::Save;
using rolling::Saved;
using vernier::Error;
using vernier::Event;
using vernier::Run;
using vernier::State;
using Clock = std::chrono::steady_clock;

// A capsule has the format of a checkpoint, but it is of the middle of a step. A run resumed from it would lack the
// batch of that step.
[[noreturn]] void refuse_capsule(const Run& run, const std::string& path) {
  vernier::refuse(path + ": is a capsule of callback/flight_recorder, kept in the middle of a step; look at it with " +
                  run.replay_command + " " + path + ", and resume from a checkpoint of the run");
}

double seconds_since(Clock::time_point begin) {
  return std::chrono::duration<double>(Clock::now() - begin).count();
}

constexpr std::int64_t steps_between_looks = 4;  // ranks exchange messages once in so many steps
constexpr std::chrono::milliseconds between_looks{50};

class Rolling final : public vernier::Checkpoint, public vernier::draft::Capturable {
 public:
  explicit Rolling(vernier::Options& options)
      : every_(
            options.get("every", 500, "steps from one checkpoint to the next; 0: none by steps", vernier::at_least(0))),
        every_minutes_(options.get("every_minutes", 0.0,
                                   "minutes from one checkpoint to the next; 0: none by the clock",
                                   vernier::at_least(0))),
        at_epoch_end_(options.get("at_epoch_end", false, "one where the data start anew")),
        is_every_given_(options.given("every")),
        metric_(options, "keep_best: ") {
    retention_.keep_last = options.get("keep_last", 3, "the newest checkpoints that stay", vernier::at_least(1));
    retention_.keep_every =
        options.get("keep_every", 0, "those of steps that this divides stay for good; 0: none", vernier::at_least(0));
    retention_.keep_best = options.get("keep_best", 0, "the best checkpoints that stay, saved when they are validated",
                                       vernier::at_least(0));
    for (const char* key : {"metric", "mode"}) {
      if (options.given(key) && retention_.keep_best == 0) options.refuse(key, "is for `keep_best`, which is 0");
    }
    async_ = options.get("async", true, "write while training continues");
    skips_ =
        options.choose("in_flight", "wait", {"wait", "skip"}, "where the last one is still being written") == "skip";
    continues_ = options.choose("on_failure", "stop", {"stop", "continue"}, "what a save that fails does to the run") ==
                 "continue";
  }

  ~Rolling() override {
    if (shards_) warn("the checkpoint that the ranks were writing is dropped");
    if (!writing_.valid()) return;
    try {
      (void)writing_.get();
    } catch (...) {  // nobody else asks for the result
      warn(vernier::caught().message);
    }
  }

  void attach(vernier::Bus& bus) override {
    bus.on(Event::RunBegin, [this](Run&) { last_ = Clock::now(); });
    bus.on(Event::StepBegin, [this](Run& run) { look(run); });
    bus.on(Event::LossReady, [this](Run&) {  // the optimizer may step during backward
      const auto begin = Clock::now();
      copies_.hold_update();
      stalled_ += seconds_since(begin);
    });
    bus.on(Event::StepEnd, [this](Run& run) { report_progress(run); });
    bus.on(Event::Validated, [this](Run& run) { judge(run); });
    bus.on(Event::EpochEnd, [this](Run&) { wanted_ |= at_epoch_end_; });
    bus.on(Event::RunEnd, [this](Run& run) {
      wait(run, /*is_last=*/true);
      if (!failure_.empty()) throw Error(failure_);
    });
    bus.on(Event::RunFailed, [this](Run& run) {
      if (shards_) return drop_shards();  // another rank may be lost
      wait(run, /*is_last=*/true);
      if (!failure_.empty() && !continues_) warn(failure_);
    });
  }

  void check(const Run& run) override {
    if (is_every_given_ && every_ > run.steps && run.steps > 0) {
      warn("every = ", every_, ", and the run has ", run.steps,
           " steps, so a checkpoint is made at its end alone; lower [checkpoint] every");
    }
    if (retention_.keep_best == 0) return;
    metric_.check(run);
    retention_.highest_is_best = metric_.is_max();
    if (run.validations == 1) warn("keep_best has one validation to choose from, the last; lower [run] validate_every");
  }

  bool due(const Run& run) override {
    const std::chrono::duration<double, std::ratio<60>> minutes = Clock::now() - last_;
    const bool by_steps = every_ > 0 && run.step % every_ == 0;
    const bool by_clock = every_minutes_ > 0 && minutes.count() >= every_minutes_;
    const bool is_asked = std::exchange(wanted_, false) || by_steps || by_clock;
    skipped_ = is_asked && skips_ && (shards_ || is_writing());
    return agreed(run, is_asked, is_asked && !skipped_);
  }

  // With several ranks, rank 0 decides. The others ask it if the decision depends on its clock, disk or checkpoints.
  bool agreed(const Run& run, bool is_asked, bool is_due) {
    const bool is_known = !std::exchange(was_judged_, false) && every_minutes_ == 0 && !(is_asked && skips_);
    if (is_known || run.control == nullptr || run.control->ranks() == 1) return is_due;
    State decision;
    decision.put("due", std::int64_t{is_due});
    return run.control->gather(decision).front().integer("due") != 0;
  }

  // Never two at once: each would get half of the memory and of the disk's time.
  void write(const State& snapshot, Run& run) override {
    if (!is_ready(run)) return;
    const auto copy = copy_of(snapshot, run);
    const auto what = std::make_shared<const Save>(describe({copy.tensors}, run));
    start(run, [this, folder = folder_of(run.output), what, copy] {
      copy.wait();
      return folder.save(*what, [this](std::uint64_t bytes) { done_ = bytes; });
    });
  }

  bool writes_shards() const override { return true; }

  // Rank 0 makes the folder in which all write. See settle() for what follows.
  void write_shard(const State& shard, Run& run) override {
    if (!is_ready(run)) return;
    Shards shards;
    State made;
    const auto rank = run.control->rank();
    try {
      if (rank == 0) shards.unfinished = folder_of(run.output).begin(run.step);
      made.put("folder", shards.unfinished ? shards.unfinished->folder() : "");
    } catch (...) {
      made.put("failure", vernier::caught().message);
    }
    const auto first = run.control->gather(made).front();
    if (first.has("failure")) return fail(run, first.text("failure"));
    const auto folder = first.text("folder");
    const auto copy = copy_of(shard, run);
    shards.what = std::make_shared<Save>(describe({copy.tensors}, run));
    shards_ = std::move(shards);
    start(run, [this, folder, rank, what = shards_->what, copy] {
      copy.wait();
      const auto& [about, model, state] = what->checkpoint;
      const auto progress = [this](std::uint64_t bytes) { done_ = bytes; };
      const auto files = rank == 0 ? vernier::write_checkpoint_files(folder, model, state, progress)
                                   : vernier::write_checkpoint_shard(folder, rank, {copy.tensors}, progress);
      Saved saved;
      saved.files = vernier::files_text(folder, files);
      return saved;
    });
  }

  std::optional<State> read(const Run& run, const std::string& from) override {
    if (from.empty()) return state_of(folder_of(run.output).read_newest());
    if (vernier::is_checkpoint(from)) {
      auto state = state_of(vernier::read_checkpoint(from));
      if (state->has(vernier::capsule_report_key)) refuse_capsule(run, from);
      return state;
    }
    if (auto state = state_of(folder_of(from).read_newest())) return state;
    vernier::refuse(from + ": is neither a checkpoint (it has no manifest.json) nor the folder of a run with one");
  }

  std::vector<std::string> snapshots(const std::string& folder) override {
    return vernier::checkpoints_in((fs::path(folder) / "checkpoints").string());
  }

  State save() const override {
    std::vector<std::int64_t> steps;
    std::vector<double> values;
    for (const auto& [step, score] : scores_) {
      steps.push_back(step);
      values.push_back(score);
    }
    State state;
    state.put("scored_steps", torch::tensor(steps, torch::kLong));
    state.put("scores", torch::tensor(values, torch::kDouble));
    if (!scores_.empty()) state.put("scored_by", scored_by());
    return state;
  }

  void load(const State& state) override {
    if (!state.has("scores")) return;  // the state of another checkpoint plugin
    const auto steps = state.tensor("scored_steps"), values = state.tensor("scores");
    scores_.clear();
    if (const auto by = state.has("scored_by") ? state.text("scored_by") : scored_by(); by != scored_by()) {
      if (retention_.keep_best > 0)
        warn("keep_best goes by ", scored_by(), " from now on, and forgets the scores by ", by);
      return;
    }
    for (std::int64_t i = 0; i < steps.numel(); ++i) scores_[steps[i].item<std::int64_t>()] = values[i].item<double>();
  }

 private:
  std::string scored_by() const { return (metric_.is_max() ? "the highest " : "the lowest ") + metric_.name(); }

  Folder folder_of(const std::string& run) const {
    return {(fs::path(run) / "checkpoints").string(), retention_, [this](const std::string& text) { warn(text); }};
  }

  // A checkpoint that all ranks write. It exists on all ranks from write_shard() until settle() has come to its end.
  struct Shards {
    std::unique_ptr<vernier::UnfinishedCheckpoint> unfinished;  // on rank 0
    std::shared_ptr<Save> what;
    bool are_written = false;  // all of them; rank 0 completes the checkpoint
    Saved saved;
    State result;  // this rank's "files" or "failure"; empty while it writes
  };

  bool is_ready(Run& run) {
    if (has_given_up_) return false;
    wait(run);
    stop_at_failure();
    last_ = Clock::now();
    return true;
  }

  rolling::Copy copy_of(const State& snapshot, const Run& run) {
    const auto begin = Clock::now();
    auto copy = async_ ? copies_.of(snapshot.tensors, run.device) : rolling::Copy{snapshot.tensors};
    total_ = 0;
    done_ = 0;
    for (const auto& [name, tensor] : copy.tensors) total_ += tensor.defined() ? tensor.nbytes() : 0;
    stalled_ = seconds_since(begin);
    return copy;
  }

  void start(Run& run, std::function<Saved()> save) {
    save_ = std::move(save);
    writing_ = std::async(async_ ? std::launch::async : std::launch::deferred, save_);
    if (async_) return;
    wait(run);
    stop_at_failure();
  }

  Save describe(const State& snapshot, const Run& run) const {
    Save what{vernier::split_snapshot(snapshot), scores_};
    what.checkpoint.manifest.step = run.step;
    what.checkpoint.manifest.run = run.name;
    return what;
  }

  static std::optional<State> state_of(std::optional<vernier::StoredCheckpoint> stored) {
    if (!stored) return std::nullopt;
    return vernier::join_snapshot(std::move(*stored));
  }

  bool is_writing() const {
    return writing_.valid() && writing_.wait_for(std::chrono::seconds(0)) == std::future_status::timeout;
  }

  // Reports a finished save at the beginning of a step. A failed save ends the run.
  void look(Run& run) {
    if (std::exchange(skipped_, false)) {
      const std::string reason = "the last one is still being written";
      run.notice("checkpoint_skipped", {{"reason", reason}}, "a checkpoint is left out: " + reason);
    }
    if (shards_) {
      if (shards_->are_written || run.step % steps_between_looks == 0) settle(run);
    } else if (writing_.valid() && !is_writing()) {
      wait(run);
    }
    has_given_up_ = !failure_.empty() && !continues_;
    stop_at_failure();
  }

  void wait(Run& run, bool is_last = false) {
    if (shards_) return wait_for_shards(run);
    if (!writing_.valid()) return;
    const auto save = std::exchange(save_, nullptr);
    try {
      report_saved(run, writing_.get());
    } catch (...) {
      failure_ = vernier::caught().message;
      if (async_ && (is_last || !continues_)) try_again(run, save);
      if (!failure_.empty()) failure_ += folder_of(run.output).remedy(failure_, total_);
      if (!failure_.empty() && continues_) report_failure(run);
    }
  }

  void report_failure(Run& run) const {
    warn(failure_, " (the run continues without this checkpoint; the next save tries again)");
    run.notice("checkpoint_failed", {{"reason", failure_}}, "a checkpoint failed: " + failure_);
  }

  // All ranks together, on their main threads: once each has written its part, rank 0 writes the manifest. If one
  // cannot, all know why. Returns false if a rank is still writing.
  bool settle(Run& run) {
    auto& [unfinished, what, are_written, saved, result] = *shards_;
    if (writing_.valid() && !is_writing()) {
      try {
        saved = writing_.get();
        result.put("files", saved.files);
      } catch (...) {
        result.put("failure", c10::str("rank ", run.control->rank(), ": ", vernier::caught().message));
      }
    }
    const auto results = run.control->gather(result);
    if (std::ranges::any_of(results, [](const State& each) { return each.tensors.empty(); })) return false;
    const auto failed = std::ranges::find_if(results, [](const State& each) { return each.has("failure"); });
    if (failed == results.end() && !std::exchange(are_written, true)) {
      if (unfinished) complete(run, results);
      return false;
    }
    const auto shards = std::exchange(shards_, std::nullopt);
    failure_.clear();
    if (failed != results.end()) {
      failure_ = failed->text("failure");
      failure_ += folder_of(run.output).remedy(failure_, total_);
      if (continues_) report_failure(run);
    } else if (shards->unfinished) {
      report_saved(run, shards->saved);
    }
    return true;
  }

  void wait_for_shards(Run& run) {
    while (!settle(run)) {
      if (writing_.valid()) {
        writing_.wait_for(between_looks);
      } else {
        std::this_thread::sleep_for(between_looks);
      }
    }
  }

  // On rank 0, which looks at the disk in the background.
  void complete(Run& run, const std::vector<State>& results) {
    shards_->result = {};
    const auto save = [results, what = shards_->what, unfinished = shards_->unfinished.get(), begin = last_,
                       folder = folder_of(run.output)] {
      auto& files = what->checkpoint.manifest.files;
      for (const auto& result : results) files.merge(vernier::parse_files("a rank's files", result.text("files")));
      auto saved = folder.complete(*unfinished, *what);
      saved.seconds = seconds_since(begin);
      return saved;
    };
    writing_ = std::async(async_ ? std::launch::async : std::launch::deferred, save);
  }

  void fail(Run& run, const std::string& why) {
    failure_ = why;
    if (continues_) return report_failure(run);
    stop_at_failure();
  }

  void drop_shards() {
    if (writing_.valid()) writing_.wait();
    writing_ = {};
    shards_.reset();
  }

  // Repeats the save, whose copy still exists, because a later save may not come.
  void try_again(Run& run, const std::function<Saved()>& save) {
    const auto first = failure_;
    try {
      report_saved(run, save());
      warn(first, " (the second try went well)");
    } catch (...) {
      const auto again = vernier::caught().message;
      failure_ = again == first ? first + " (twice)" : first + "; once more: " + again;
    }
  }

  void report_saved(Run& run, const Saved& saved) {
    failure_.clear();
    std::erase_if(scores_, [&](const auto& score) {
      const bool is_there = std::ranges::find(saved.steps, score.first) != saved.steps.end();
      return !is_there && score.first <= saved.steps.front();
    });
    run.notice("checkpoint_saved",
               {{"path", saved.path},
                {"seconds", saved.seconds},
                {"bytes", static_cast<std::int64_t>(saved.bytes)},
                {"stalled", stalled_}},
               "saved " + saved.path);
  }

  void stop_at_failure() {
    if (!failure_.empty() && !continues_) throw Error(std::exchange(failure_, ""));
  }

  void report_progress(Run& run) const {
    if (!is_writing()) return;
    const double share = total_ > 0 ? static_cast<double>(done_) / static_cast<double>(total_) : 0;
    run.notice("checkpoint_progress", {{"share", std::min(share, 1.0)}});
  }

  void judge(Run& run) {
    if (retention_.keep_best == 0) return;
    was_judged_ = true;
    const auto value = metric_.value(run);
    retention_.highest_is_best = metric_.is_max();
    if (!std::isfinite(value)) return;
    scores_[run.step] = value;
    const auto best = rolling::best_of(scores_, retention_.keep_best, retention_.highest_is_best);
    wanted_ |= std::ranges::find(best, run.step) != best.end();
  }

  std::int64_t every_;
  double every_minutes_;
  bool at_epoch_end_, is_every_given_;
  JudgedMetric metric_;
  rolling::Retention retention_;
  bool async_ = true, skips_ = false, continues_ = false;

  bool wanted_ = false, skipped_ = false, was_judged_ = false;
  Clock::time_point last_ = Clock::now();
  rolling::Scores scores_;     // scores of the existing checkpoints and of later validations
  std::string failure_;        // failure of the last save, until it is reported
  bool has_given_up_ = false;  // a save failed and ends the run, so no last checkpoint either
  rolling::Copies copies_;
  double stalled_ = 0;
  std::uint64_t total_ = 0;
  std::atomic<std::uint64_t> done_ = 0;
  std::optional<Shards> shards_;
  std::function<Saved()> save_;  // writes the last copy
  std::future<Saved> writing_;   // the last member: it uses the others
};

}  // namespace

VERNIER_PLUGIN(Rolling, "rolling", "2.0.0")
