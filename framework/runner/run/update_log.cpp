#include "update_log.h"

#include <ATen/ATen.h>
#include <torch/types.h>
#include <vernier/draft/gradient_parts.h>

#include <cmath>

namespace vernier {

namespace {

// Returns the lesser number, or the one that is not NaN: torch::fmin, but on a CPU without LibTorch's dispatcher.
torch::Tensor lesser_of(const torch::Tensor& best, const torch::Tensor& loss) {
  if (!best.defined()) return loss;
  const auto is_on_host = [](const torch::Tensor& x) { return x.is_cpu() && x.scalar_type() == torch::kFloat32; };
  if (!is_on_host(best) || !is_on_host(loss)) return torch::fmin(best, loss);
  const float before = *best.const_data_ptr<float>(), now = *loss.const_data_ptr<float>();
  return now < before || std::isnan(before) ? loss : best;
}

// The host waits for a device that has the tensors.
void set_scale(TrainerRun& run, std::int64_t step, const Scaler::Current& now) {
  const bool has_tracker = now.scale.defined() && now.growth_tracker.defined();
  run.amp.set_scale(step, now.scale.defined() ? std::optional(now.scale.item<double>()) : std::nullopt,
                    has_tracker ? std::optional(now.growth_tracker.item<std::int64_t>()) : std::nullopt);
}

}  // namespace

void UpdateLog::take_scale(TrainerRun& run, const Scaler::Current& scale) {
  if (last() && last_->scale) {  // the scaler before has left it
    run.amp.set_scale(run.step + 1, last_->scale);
    last_->scale.reset();
  }
  set_scale(run, run.step + 1, scale);
}

void UpdateLog::look(const Run& run) {
  not_finite_.clear();
  is_loss_bad_ = false;
  if (run.results_are_late) return;  // the scaler's norms show it
  is_loss_bad_ = !std::isfinite(run.loss.item<double>());
  if (is_loss_bad_ || (run.found_inf.defined() && is_set(run.found_inf))) not_finite_ = run.non_finite_gradients();
}

void UpdateLog::count_one(TrainerRun& run, std::int64_t step, const KnownUpdate& update) {
  run.last_update = update.result;
  run.updates += is_skipped(update.result) ? 0 : 1;
  if (update.result == UpdateResult::found_inf) run.amp.add_overflow();
  if (!is_skipped(update.result)) return;
  Notice::Details details{{"step", step}};
  const bool is_veto = update.result == UpdateResult::vetoed && update.gradients.empty();
  details.emplace_back("reason", std::string(is_veto ? "vetoed" : "gradients not finite"));
  if (!update.gradients.empty()) details.emplace_back("gradients", update.gradients);
  run.notice("step_skipped", std::move(details),
             is_veto ? "a callback skipped the update"
                     : "the update is skipped: gradients are not finite" +
                           (update.gradients.empty() ? "" : " (" + update.gradients + ")"));
}

// Scale and tracker that are on a device come with the result of the update.
void UpdateLog::count(TrainerRun& run, const Scaler::Current& scale) {
  best_loss_ = lesser_of(best_loss_, run.loss);
  run.amp.add({.is_amp = is_mixed_});
  const auto* share = HostApi::find(run.metrics, "underflow");
  if (const auto* tensor = share == nullptr ? nullptr : std::get_if<torch::Tensor>(&share->number)) {
    run.amp.add_underflow(*tensor);
  }
  run.last_update = UpdateResult::none;
  const auto before = last();
  if (before) count_one(run, run.step, *before);
  if (before && before->scale) run.amp.set_scale(run.step + 1, before->scale, before->growth_tracker);
  last_.reset();
  const bool is_sent = run.results_are_late && run.skip_update.defined();
  if (!is_sent) set_scale(run, run.step + 2, scale);
  if (!run.skip_update.defined()) {
    count_one(run, run.step + 1, {});
    if (before && is_skipped(before->result)) run.last_update = before->result;  // no listener has seen it
    if (is_loss_bad_ && !run.non_finite_reported) {
      run.notice("non_finite", {{"step", run.step + 1}, {"what", std::string("loss")}}, "the loss is not finite");
    }
  } else if (run.results_are_late) {
    send(run, scale);
  } else {
    count_one(run, run.step + 1, now(run));
  }
  run.norms = {};
}

void UpdateLog::conclude(TrainerRun& run) {
  const auto update = last();
  if (update && update->scale) run.amp.set_scale(run.step + 1, update->scale, update->growth_tracker);
  if (update && is_skipped(update->result)) count_one(run, run.step, *update);
}

KnownUpdate UpdateLog::now(const Run& run) {
  if (!is_set(run.skip_update)) return {};
  // Perhaps only this rank has a veto. It must not ask the other ranks here for the gradients that they keep.
  if (not_finite_.empty() && !draft::GradientParts::exist()) not_finite_ = run.non_finite_gradients();
  const bool has_overflowed = run.found_inf.defined() && is_set(run.found_inf);
  return {has_overflowed ? UpdateResult::found_inf : UpdateResult::vetoed, some_of(not_finite_), {}};
}

// In one tensor. Which gradients are not finite is known where the scaler has read each of them.
void UpdateLog::send(const Run& run, const Scaler::Current& scale) {
  auto numbers =
      at::stack({run.skip_update, run.found_inf.defined() ? run.found_inf : at::zeros_like(run.skip_update)});
  sent_names_.clear();
  if (run.norms.each.defined()) {
    for (const auto& parameter : run.parameters) {
      const auto& gradient = parameter.master.grad();
      if (gradient.defined() && gradient.numel() > 0) sent_names_.push_back(parameter.name);
    }
    numbers = at::cat({numbers, run.norms.each.isfinite().logical_not().to(numbers.scalar_type())});
  }
  has_sent_scale_ = scale.scale.defined();
  has_sent_tracker_ = has_sent_scale_ && scale.growth_tracker.defined();
  if (has_sent_scale_) numbers = at::cat({numbers, scale.scale.reshape({1}).to(numbers)});
  if (has_sent_tracker_) numbers = at::cat({numbers, scale.growth_tracker.reshape({1}).to(numbers)});
  sent_.send(numbers);
}

std::optional<KnownUpdate> UpdateLog::last() {
  const auto numbers = sent_.receive();
  if (!numbers) return last_;
  std::vector<std::string> names;
  for (std::size_t i = 0; i < sent_names_.size() && i + 2 < numbers->size(); ++i) {
    if ((*numbers)[i + 2] != 0) names.push_back(sent_names_[i]);
  }
  const auto skipped = numbers->at(1) != 0 ? UpdateResult::found_inf : UpdateResult::vetoed;
  last_ = KnownUpdate{numbers->at(0) != 0 ? skipped : UpdateResult::applied, some_of(names)};
  if (has_sent_scale_) last_->scale = *(numbers->end() - (has_sent_tracker_ ? 2 : 1));
  if (has_sent_tracker_) last_->growth_tracker = std::llround(numbers->back());
  return last_;
}

void UpdateLog::save(State& state) {
  if (best_loss_.defined()) state.put("best_loss", best_loss_);
  if (!last()) return;
  state.put("last_update", static_cast<std::int64_t>(last_->result));
  state.put("not_finite", last_->gradients);
  if (last_->scale) state.put("last_scale", *last_->scale);
  if (last_->growth_tracker) state.put("last_growth_tracker", *last_->growth_tracker);
}

void UpdateLog::load(const State& state, c10::Device device) {
  best_loss_ = state.has("best_loss") ? state.tensor("best_loss").to(device) : torch::Tensor();
  sent_ = {};
  last_.reset();
  if (!state.has("last_update")) return;
  last_ = KnownUpdate{static_cast<UpdateResult>(state.integer("last_update")), state.text("not_finite")};
  if (state.has("last_scale")) last_->scale = state.real("last_scale");
  if (state.has("last_growth_tracker")) last_->growth_tracker = state.integer("last_growth_tracker");
}

}  // namespace vernier
