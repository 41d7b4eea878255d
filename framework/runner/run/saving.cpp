#include "saving.h"

#include <torch/types.h>
#include <vernier/error.h>

#include <chrono>
#include <cmath>
#include <optional>
#include <utility>

#include "run/state/shards.h"
#include "step.h"
#include "validation.h"
#include "wiring/config.h"

namespace vernier {

namespace {

// Puts entries into a snapshot. An empty value is left out.
struct Put {
  State& own;
  void operator()(const char* name, const torch::Tensor& value) const {
    if (value.defined()) own.put(name, value);
  }
  template <class Number>
  void operator()(const char* name, const std::optional<Number>& value) const {
    if (value) own.put(name, *value);
  }
  void operator()(const char* name, const std::string& value) const {
    if (!value.empty()) own.put(name, value);
  }
  void operator()(const char* name, bool value) const {
    if (value) own.put(name, std::int64_t{1});
  }
};

// Takes the entries from a snapshot. A value whose entry is missing becomes empty.
struct Take {
  const State& own;
  c10::Device device;
  void operator()(const char* name, torch::Tensor& value) const {
    value = own.has(name) ? own.tensor(name).to(device) : torch::Tensor();
  }
  void operator()(const char* name, std::optional<double>& value) const {
    value = own.has(name) ? std::optional(own.real(name)) : std::nullopt;
  }
  void operator()(const char* name, std::optional<std::int64_t>& value) const {
    value = own.has(name) ? std::optional(own.integer(name)) : std::nullopt;
  }
  void operator()(const char* name, std::string& value) const { value = own.has(name) ? own.text(name) : ""; }
  void operator()(const char* name, bool& value) const { value = own.has(name); }
};

// The table of the trainer's own entries of a snapshot, below "trainer/". A rewind in memory must not load "swaps",
// "asked" and "rewind", so the table lacks them: it keeps plugins and snapshots, and cancels what was asked.
template <class Visit>
void for_each_entry(Parts& parts, TrainerRun& run, const Visit& visit) {
  auto& [best_loss, samples_of_batch, rewound_from, finished_of, adapts, validation_due] = parts.progress;
  visit("loss", run.loss);
  visit("best_loss", best_loss);
  visit("validation_loss", parts.outcome.validation_loss);
  visit("best_validation_loss", parts.outcome.best_validation_loss);
  visit("samples_of_batch", samples_of_batch);
  visit("rewound_from", rewound_from);
  visit("validation_due", validation_due);
  visit("finished", parts.requests.finished);
  visit("finished_of", finished_of);
  visit("adapts", adapts);
}

// Logs why there is no checkpoint: the run would be resumed from it, and it would displace older ones.
void warn_of_spoiled(const Run& run, const std::string& weight) {
  log(Level::warning, "trainer",
      c10::str("no checkpoint is made after step ", run.step, ": ", weight, " is not finite"));
}

}  // namespace

State Saving::snapshot(TrainerRun& run, Unsavable unsavable) {
  auto snapshot = take_snapshot(run, parts_.wiring.plugins(), parts_.configured(Keys::all), unsavable);
  State own;
  // On a GPU the last step's flag is still on its way; waiting for it here must not make it count a step early.
  parts_.update_log.save(own);
  own.put("amp", run.amp.state_dict());
  parts_.progress.finished_of.reset();
  if (!parts_.requests.finished.empty()) parts_.progress.finished_of = run.steps;
  for_each_entry(parts_, run, Put{own});
  for (const auto& [name, measured] : parts_.outcome.measured) {
    if (measured.last) own.put("measured/last/" + name, *measured.last);
    if (measured.best) own.put("measured/best/" + name, *measured.best);
  }
  if (const auto swaps = text_of_swaps(parts_.wiring); !swaps.empty()) own.put("swaps", swaps);
  const auto& asked = parts_.requests.pending.swap;
  if (!asked.empty()) own.put("asked", to_toml(asked));
  snapshot.put("trainer", own);
  return snapshot;
}

// A run that was finished goes on if it is resumed with more steps.
void Saving::load(TrainerRun& run, const State& own) {
  parts_.update_log.load(own);
  if (own.has("amp/total_steps")) run.amp.load_state_dict(own.part("amp"));
  for_each_entry(parts_, run, Take{own, run.device});
  const auto last = own.part("measured/last"), best = own.part("measured/best");
  parts_.outcome.measured.clear();
  for (const auto& [name, value] : last.tensors) parts_.outcome.measured[name].last = last.real(name);
  for (const auto& [name, value] : best.tensors) parts_.outcome.measured[name].best = best.real(name);
  plan_again(parts_, run);
  if (parts_.progress.finished_of && run.steps > *parts_.progress.finished_of) parts_.requests.finished.clear();
}

void Saving::resume(TrainerRun& run, State snapshot, bool allow_inexact) {
  auto& wiring = parts_.wiring;
  take_own_state(snapshot, *wiring.distributed);
  parts_.ranks.refuse_differences({{"the step of the checkpoint", std::to_string(snapshot.integer("run/step"))}});
  const auto own = snapshot.part("trainer");
  if (own.has("swaps")) swap_again(wiring, run, parts_.built, own.text("swaps"));
  parts_.calls.note(nullptr);
  restore_snapshot(std::move(snapshot), run, wiring.plugins(), parts_.configured(Keys::compared), allow_inexact);
  if (own.has("asked")) parts_.requests.pending.swap = parse_toml(own.text("asked"), "the checkpoint");
  load(run, own);
  parts_.snapshots.load(own.part("rewind"));
  parts_.transaction.rewire();
  saved_step_ = run.step;
}

// Only the entries below `also`/ of the asker's memory come from the snapshot.
void Saving::rewind(TrainerRun& run) {
  const auto asked = std::exchange(parts_.requests.pending, {});
  const auto given_up = run.step;
  auto snapshot = parts_.snapshots.back_to(run.step - asked.back);
  parts_.snapshots.drop(run.batches_drawn - 1, asked.drop * run.batches);
  const auto change = changing();
  const auto own = "plugin/" + asked.rewinder->id() + "/", shared = own + asked.also + "/";
  std::erase_if(snapshot.tensors, [&](const auto& entry) {
    return entry.first.starts_with(own) && (asked.also.empty() || !entry.first.starts_with(shared));
  });
  for (const auto& [name, tensor] : asked.rewinder->save().tensors) {
    if (asked.also.empty() || !name.starts_with(asked.also + "/")) snapshot.put(own + name, tensor);
  }
  restore_snapshot_quietly(snapshot, run, parts_.wiring.plugins());  // of this run, or let in when it was resumed
  load(run, snapshot.part("trainer"));
  outdate();
  parts_.progress.rewound_from = given_up;
}

void Saving::save_in_memory_if_due(TrainerRun& run) {
  if (parts_.snapshots.is_due(run.step)) parts_.snapshots.add(run.step, snapshot(run));
}

void Saving::save_now(TrainerRun& run) {
  if (is_saved(run)) return;
  parts_.calls.attributed(run, [&] {
    parts_.calls.note(nullptr);
    save_finite(run);
  });
}

void Saving::save_finite(TrainerRun& run) {
  if (const auto weight = bad_weight(run); !weight.empty()) {
    throw Error("no checkpoint is made: " + weight + " is not finite");
  }
  save(run);
}

void Saving::save(TrainerRun& run, Unsavable unsavable) {
  const auto begin = std::chrono::steady_clock::now();
  parts_.agree(run, "a checkpoint", Ranks::Compared::all_weights);
  auto& distributed = *parts_.wiring.distributed;
  const bool is_sharded = parts_.ranks.are_sharded();
  parts_.calls.note(nullptr);  // the snapshot names whoever cannot be saved
  auto whole = snapshot(run, unsavable);
  whole.put("trainer/rewind", parts_.snapshots.save());
  if (parts_.ranks.are_several()) parts_.calls.note(&distributed);
  add_state_of_others(whole, distributed, is_sharded);
  if (is_sharded) {
    const auto shard = shard_of(whole, distributed);
    parts_.checkpoint->write_shard(shard, run);
  } else if (distributed.rank() == 0) {
    parts_.checkpoint->write(whole, run);
  }
  saved_step_ = run.step;
  parts_.clock.add_checkpoint(seconds_since(begin));
}

std::string not_finite(const Run& run) {
  const torch::NoGradGuard no_grad;
  for (const auto& parameter : run.parameters) {
    if (!parameter.best().isfinite().all().item<bool>()) return parameter.name;
  }
  return "";
}

// Like not_finite(), agreed between ranks: only the owner of a weight has its float32 master.
std::string Saving::bad_weight(const Run& run) {
  const auto weight = not_finite(run);
  if (!parts_.ranks.are_sharded() || !parts_.ranks.any(!weight.empty())) return weight;
  return weight.empty() ? "a weight of another rank" : weight;
}

// Weights that are not finite make the loss not finite, in the next step at the latest, so they are looked at only
// then. On a GPU they are not looked at, because the host would wait for the update.
std::string Saving::spoiled_weight(const Run& run) {
  const bool is_suspect = !run.results_are_late && run.loss.defined() && !std::isfinite(run.loss.item<double>());
  return is_suspect ? bad_weight(run) : "";
}

void Saving::save_unless_spoiled(TrainerRun& run) {
  if (const auto weight = spoiled_weight(run); !weight.empty()) return warn_of_spoiled(run, weight);
  save(run);
}

// Saves a run that failed, if its state is that of finished steps. Several ranks save together or not at all, and one
// that fails does not know where the others are.
void Saving::save_what_is_whole(TrainerRun& run) {
  if (parts_.ranks.are_several()) return;
  const bool is_new = run.step > 0 && !is_saved(run);
  if (!is_whole_ || !is_new || parts_.calls.called() == parts_.wiring.checkpoint.get()) return;
  if (const auto weight = bad_weight(run); !weight.empty()) return warn_of_spoiled(run, weight);
  try {
    save(run, Unsavable::left_out);
  } catch (...) {
    log(Level::error, "checkpoint after the failure", caught().message);
  }
}

}  // namespace vernier
