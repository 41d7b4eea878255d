#include "saving.h"

#include <cmath>

#include "common/config/config.h"
#include "files/shards.h"
#include "wiring/swap.h"

namespace vernier {

namespace {

// Logs why there is no checkpoint: the run would be resumed from it, and it would displace older ones.
void warn_of_spoiled(const Run& run, const std::string& weight) {
  log(Level::warning, "trainer",
      c10::str("no checkpoint is made after step ", run.step, ": ", weight, " is not finite"));
}

}  // namespace

// The trainer's own entries are below "trainer/".
State Saving::snapshot(TrainerRun& run, Unsavable unsavable) {
  auto snapshot = take_snapshot(run, roles_.wiring.plugins(), configured(Keys::all), unsavable);
  State own;
  // On a GPU the last step's flag is still on its way; waiting for it here must not make it count a step early.
  step_.update_log().save(own);
  own.put("amp", run.amp.state_dict());
  if (run.loss.defined()) own.put("loss", run.loss);
  step_.batches().save(own);
  step_.plan().save(own);
  validation_.save(own);
  requests_.save(own, run);
  if (const auto from = snapshots_.rewound_from()) own.put("rewound_from", *from);
  if (const auto engine = step_.passes() ? step_.passes()->save() : ""; !engine.empty()) own.put("engine", engine);
  if (const auto swaps = text_of_swaps(roles_.wiring); !swaps.empty()) own.put("swaps", swaps);
  snapshot.put("trainer", own);
  return snapshot;
}

// Loads all but what a rewind in memory leaves: it keeps plugins and snapshots, and cancels what was asked.
void Saving::load(TrainerRun& run, const State& own) {
  step_.update_log().load(own, run.device);
  if (own.has("amp/total_steps")) run.amp.load_state_dict(own.part("amp"));
  run.loss = own.has("loss") ? own.tensor("loss").to(run.device) : torch::Tensor();
  step_.batches().load(own);
  step_.plan().load(own);
  step_.plan().count_again(run);
  validation_.load(own);
  requests_.load(own, run);
  snapshots_.note_rewind(own.has("rewound_from") ? std::optional(own.integer("rewound_from")) : std::nullopt);
}

void Saving::resume(TrainerRun& run, State snapshot, bool allow_inexact) {
  auto& wiring = roles_.wiring;
  const auto saved_ranks = snapshot.has("run/ranks") ? snapshot.integer("run/ranks") : 1;
  take_own_state(snapshot, *wiring.distributed);
  roles_.ranks.refuse_differences({{"the step of the checkpoint", std::to_string(snapshot.integer("run/step"))}});
  const auto own = snapshot.part("trainer");
  if (own.has("swaps")) {
    swap_again(wiring, run, own.text("swaps"));
    note_swap(run);
  }
  roles_.calls.note(nullptr);
  restore_snapshot(std::move(snapshot), run, wiring.plugins(), configured(Keys::compared), allow_inexact);
  if (own.has("asked")) requests_.swap(parse_toml(own.text("asked"), "the checkpoint"), "");
  load(run, own);
  const auto engine = own.has("engine") ? own.text("engine") : "";
  const bool may_differ = allow_inexact || saved_ranks != wiring.distributed->ranks();  // the bits of the steps
  if (auto* const passes = step_.passes(); passes != nullptr) {
    passes->load(engine, may_differ);
  } else {
    compare_engines(engine, false, may_differ);
  }
  snapshots_.load(own.part("rewind"));
  saved_step_ = run.step;
}

void Saving::note_swap(TrainerRun& run) {
  roles_.owners.refuse_masters_of_others(run);
  roles_.owners.share_weights(run, Owners::Weights::all);  // the old precision has rounded those of other ranks
  snapshots_.clear();
  step_.transaction().rewire_plugins();
  step_.note_plugins(run);
  outdate();
}

// Only the entries below `also`/ of the requester's memory come from the snapshot.
void Saving::rewind(TrainerRun& run) {
  const auto asked = requests_.take_rewind();
  const auto given_up = run.step;
  auto snapshot = snapshots_.back_to(run.step - asked.back);
  snapshots_.drop(run.batches_drawn - 1, asked.drop * run.batches);
  const auto change = changing();
  const auto own = "plugin/" + asked.requester->id() + "/", shared = own + asked.also + "/";
  std::erase_if(snapshot.tensors, [&](const auto& entry) {
    return entry.first.starts_with(own) && (asked.also.empty() || !entry.first.starts_with(shared));
  });
  for (const auto& [name, tensor] : asked.requester->save().tensors) {
    if (asked.also.empty() || !name.starts_with(asked.also + "/")) snapshot.put(own + name, tensor);
  }
  restore_snapshot_quietly(snapshot, run, roles_.wiring.plugins());  // it fits: taken here, or accepted on resume
  load(run, snapshot.part("trainer"));
  outdate();
  snapshots_.note_rewind(given_up);
}

void Saving::save_now(TrainerRun& run) {
  if (is_saved(run)) return;
  roles_.calls.attributed(run, [&] {
    roles_.calls.note(nullptr);
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
  roles_.ranks.agree(run, "a checkpoint", Ranks::Compared::all);
  auto& distributed = *roles_.wiring.distributed;
  const bool is_sharded = roles_.owners.are_sharded();
  roles_.calls.note(nullptr);  // the snapshot names whoever cannot be saved
  auto whole = snapshot(run, unsavable);
  whole.put("trainer/rewind", snapshots_.save());
  if (const auto model = validation_.record(run, whole); !model.empty()) whole.put("trainer/model", model);
  roles_.calls.note(nullptr);
  if (roles_.ranks.are_several()) roles_.calls.note(&distributed);
  add_state_of_others(whole, distributed, is_sharded);
  if (is_sharded) {
    roles_.checkpoint->write_shard(shard_of(whole, distributed), run);
  } else if (distributed.rank() == 0) {
    roles_.checkpoint->write(whole, run);
  }
  saved_step_ = run.step;
  step_.clock().add_checkpoint(seconds_since(begin));
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
  if (!roles_.owners.are_sharded() || !roles_.ranks.any(!weight.empty())) return weight;
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
  if (roles_.ranks.are_several()) return;
  const bool is_new = run.step > 0 && !is_saved(run);
  if (!is_whole_ || validation_.is_half_counted() || !is_new || roles_.calls.called() == roles_.wiring.checkpoint.get())
    return;
  if (const auto weight = bad_weight(run); !weight.empty()) return warn_of_spoiled(run, weight);
  try {
    save(run, Unsavable::left_out);
  } catch (...) {
    log(Level::error, "checkpoint after the failure", caught().message);
  }
}

}  // namespace vernier
