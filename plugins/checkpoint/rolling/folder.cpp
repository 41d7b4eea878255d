// Writes a checkpoint, sets aside those of later steps, moves the links, and removes what need not stay, in this order.
// Whenever the process ends, either the newest checkpoint from before or the new one is complete.
#include "folder.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>
#include <vernier/error.h>
#include <vernier/memory.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <filesystem>
#include <ranges>
#include <system_error>

#include <vernier/folders.h>

namespace rolling {

namespace fs = std::filesystem;
using vernier::Error;

namespace {

constexpr const char* abandoned_prefix = "abandoned-";
constexpr const char* unfinished_prefix = ".tmp-";  // remove_unfinished_checkpoints() removes it

[[noreturn]] void fail_with_errno(const std::string& path, const char* doing) {
  throw Error(path + ": " + doing + ": " + std::generic_category().message(errno));
}

Scores scores_of(const std::vector<std::int64_t>& steps, Scores scores) {
  std::erase_if(scores, [&](const auto& score) { return std::ranges::find(steps, score.first) == steps.end(); });
  return scores;
}

// The steps whose checkpoints stay. steps: of all checkpoints, the highest first.
std::vector<std::int64_t> those_that_stay(const std::vector<std::int64_t>& steps, const Scores& scores,
                                          const Retention& retention) {
  const auto best = best_of(scores_of(steps, scores), retention.keep_best, retention.highest_is_best);
  std::vector<std::int64_t> stay;
  for (std::size_t i = 0; i < steps.size(); ++i) {
    const bool is_new = static_cast<std::int64_t>(i) < retention.keep_last;
    const bool is_regular = retention.keep_every > 0 && steps[i] % retention.keep_every == 0;
    if (is_new || is_regular || std::ranges::find(best, steps[i]) != best.end()) stay.push_back(steps[i]);
  }
  return stay;
}

}  // namespace

std::vector<std::int64_t> best_of(const Scores& scores, std::int64_t count, bool highest_is_best) {
  std::vector<std::pair<double, std::int64_t>> order;
  for (const auto& [step, score] : scores) order.emplace_back(highest_is_best ? -score : score, step);
  std::ranges::sort(order);
  std::vector<std::int64_t> best;
  for (const auto& [score, step] : order | std::views::take(count)) best.push_back(step);
  return best;
}

Saved Folder::save(const Save& what, const vernier::CheckpointProgress& progress) const {
  const auto start = std::chrono::steady_clock::now();
  const auto& [about, model, state] = what.checkpoint;
  const auto unfinished = begin(about.step);
  auto whole = what;
  whole.checkpoint.manifest.files = vernier::write_checkpoint_files(unfinished->folder(), model, state, progress);
  auto saved = complete(*unfinished, whole);
  saved.seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  return saved;
}

std::unique_ptr<vernier::UnfinishedCheckpoint> Folder::begin(std::int64_t step) const {
  if (::mkdir(path_.c_str(), 0700) != 0 && errno != EEXIST) fail_with_errno(path_, "cannot be made");
  vernier::refuse_a_shared_folder(path_);  // before anything in it is touched
  vernier::remove_unfinished_checkpoints(path_);
  return std::make_unique<vernier::UnfinishedCheckpoint>(path_of(step));
}

Saved Folder::complete(vernier::UnfinishedCheckpoint& unfinished, const Save& what) const {
  sync_what_is_beside();
  Saved saved{path_of(what.checkpoint.manifest.step), 0, 0, {}};
  const auto manifest = unfinished.complete(what.checkpoint.manifest);
  for (const auto& [name, file] : manifest.files) saved.bytes += file.bytes;
  set_aside_later(what.checkpoint.manifest.step);
  const auto all = steps();
  saved.steps = those_that_stay(all, what.scores, retention_);
  link("latest", all);
  if (retention_.keep_best > 0) {
    link("best", best_of(scores_of(saved.steps, what.scores), 1, retention_.highest_is_best));
  }
  for (const auto step : all) {
    if (std::ranges::find(saved.steps, step) == saved.steps.end()) remove(step);
  }
  return saved;
}

// Syncs the files of monitors. The checkpoint counts their lines, which a loss of power must not take. Runs here, in
// the background, because the disk takes its time.
void Folder::sync_what_is_beside() const {
  auto run = fs::path(path_).parent_path();
  if (run.empty()) run = ".";
  std::error_code trouble;
  for (const auto& name : vernier::names_in(run, trouble)) {
    const auto path = run / name;
    std::error_code none;
    if (!fs::is_regular_file(fs::symlink_status(path, none))) continue;
    const int file = ::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK);
    int result = file;
    while (file >= 0 && (result = ::fsync(file)) != 0 && errno == EINTR) {
    }
    const int reason = errno;
    if (file >= 0) ::close(file);
    if (result >= 0 || reason == ENOENT || reason == EINVAL) continue;  // the file is gone or cannot be synced
    warn_(path.string() + ": cannot be brought to the disk: " + std::generic_category().message(reason) +
          "; a loss of power may take some of its lines");
  }
  vernier::sync_checkpoint_folder(run.string());  // also the name of a folder whose maker was killed
}

// After a rewind, checkpoints of later steps would look like the newest. They are renamed only after the new one is on
// the disk, because until then they may be the only ones to resume from.
void Folder::set_aside_later(std::int64_t step) const {
  bool has_renamed = false;
  for (const auto& checkpoint : vernier::checkpoints_in(path_)) {
    if (vernier::step_of_checkpoint(checkpoint) <= step) break;
    const auto aside = fs::path(path_) / (abandoned_prefix + fs::path(checkpoint).filename().string());
    std::error_code trouble;
    vernier::remove_all(aside, trouble);
    if (::rename(checkpoint.c_str(), aside.c_str()) != 0) fail_with_errno(checkpoint, "cannot be renamed");
    has_renamed = true;
    warn_("the run went back to before " + checkpoint + ", which is kept as " + aside.filename().string());
  }
  if (has_renamed) vernier::sync_checkpoint_folder(path_);
}

// Links are for people. Some file systems have none, so a failure is only a warning.
void Folder::link(const char* name, const std::vector<std::int64_t>& candidates) const {
  if (candidates.empty()) return;
  const fs::path target = vernier::checkpoint_name(candidates.front()), place = fs::path(path_) / name;
  std::error_code trouble;
  if (fs::read_symlink(place, trouble) == target) return;
  const fs::path made = fs::path(path_) / (unfinished_prefix + std::string(name));
  fs::remove(made, trouble);
  fs::create_symlink(target, made, trouble);
  if (!trouble) fs::rename(made, place, trouble);
  if (trouble)
    return warn_(place.string() + ": cannot be made a link to " + target.string() + ": " + trouble.message());
  vernier::sync_checkpoint_folder(path_);
}

// An old checkpoint goes only once the new one is complete, so `keep_last` makes no room for it.
std::string Folder::remedy(const std::string& failure, std::uint64_t bytes) const {
  const auto is = [&](int reason) {
    return failure.find(std::generic_category().message(reason)) != std::string::npos;
  };
  if (!is(ENOSPC) && !is(EDQUOT)) return "";
  std::error_code none;
  const auto space = fs::space(path_, none);
  const auto there = steps();
  auto text = "; a checkpoint takes " + vernier::memory_text(static_cast<std::int64_t>(bytes));
  if (!none) text += ", and " + vernier::memory_text(static_cast<std::int64_t>(space.available)) + " are free";
  text += ": remove other files of this disk";
  if (there.size() > 1) text += ", or " + path_of(there.back());
  return text + (there.empty() ? ", or set another [run] output, and start again" : ", and go on with --resume");
}

std::vector<std::int64_t> Folder::steps() const {
  std::vector<std::int64_t> all;
  for (const auto& checkpoint : vernier::checkpoints_in(path_)) all.push_back(vernier::step_of_checkpoint(checkpoint));
  return all;
}

std::string Folder::path_of(std::int64_t step) const {
  return (fs::path(path_) / vernier::checkpoint_name(step)).string();
}

// Renames the folder first: if the process is killed here, no incomplete checkpoint is left.
void Folder::remove(std::int64_t step) const {
  const auto aside = fs::path(path_) / (unfinished_prefix + vernier::checkpoint_name(step));
  std::error_code trouble;
  fs::rename(path_of(step), aside, trouble);
  vernier::remove_all(trouble ? path_of(step) : aside.string(), trouble);
  if (trouble) warn_(path_of(step) + ": cannot be removed: " + trouble.message());
}

std::optional<vernier::StoredCheckpoint> Folder::read_newest() const {
  const auto checkpoints = vernier::checkpoints_in(path_);
  if (!checkpoints.empty()) vernier::refuse_a_shared_folder(path_);
  std::string trouble;
  for (const auto& checkpoint : checkpoints) {
    try {
      auto stored = vernier::read_checkpoint(checkpoint);
      if (!trouble.empty()) warn_("resuming from " + checkpoint + ", the newest that can be read");
      return stored;
    } catch (const Error& error) {
      if (error.kind() == Error::Kind::configuration) throw;  // complete, but of another version
      warn_(error.what());
      if (trouble.empty()) trouble = error.what();
    }
  }
  if (checkpoints.empty()) return std::nullopt;
  throw Error("no checkpoint in " + path_ +
              " can be read; put a copy back, or train again without --resume; the newest: " + trouble);
}

}  // namespace rolling
