#include "fate.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <cmath>
#include <utility>

namespace vernier {

namespace {

std::string some_of(const std::vector<std::string>& names) {
  constexpr std::size_t most = 3;
  std::string text;
  for (std::size_t i = 0; i < std::min(most, names.size()); ++i) text += (i > 0 ? "," : "") + names[i];
  return names.size() > most ? text + c10::str(" and ", names.size() - most, " more") : text;
}

}  // namespace

void Fates::look(const Run& run) {
  not_finite_.clear();
  is_loss_bad_ = false;
  if (run.learns_late) return;  // the scaler's norms tell
  const bool has_overflowed = run.overflow.defined() && is_set(run.overflow);
  is_loss_bad_ = !std::isfinite(run.loss.item<double>());
  if (has_overflowed || is_loss_bad_) not_finite_ = run.non_finite_gradients();
}

void Fates::count(Run& run) {
  const auto count_one = [&run](const Fate& fate, std::int64_t step) {
    run.updates += fate.is_skipped ? 0 : 1;
    if (fate.has_overflowed) run.amp.add_overflow();
    if (fate.is_skipped) tell(run, step, fate);
  };
  if (const auto before = last()) count_one(*before, run.step);
  last_.reset();
  if (!run.found_inf.defined()) {
    count_one({}, run.step + 1);
    tell_bad_loss(run);
  } else if (run.learns_late) {
    send(run);
  } else {
    count_one(now(run), run.step + 1);
  }
  run.scaled_norms.reset();
}

// What a callback has told it tells better.
void Fates::tell_bad_loss(Run& run) {
  const bool is_told = std::ranges::any_of(run.notices, [](const auto& notice) { return notice.name == "non_finite"; });
  if (is_loss_bad_ && !is_told) run.notice("non_finite", {{"step", run.step + 1}, {"what", std::string("loss")}});
}

Fate Fates::now(const Run& run) {
  if (!is_set(run.found_inf)) return {};
  if (not_finite_.empty()) not_finite_ = run.non_finite_gradients();
  const bool has_overflowed = run.overflow.defined() && is_set(run.overflow);
  return {true, has_overflowed, some_of(not_finite_)};
}

// In one tensor. Which gradients are not finite is known where the scaler has read each of them.
void Fates::send(const Run& run) {
  auto numbers = at::stack({run.found_inf, run.overflow.defined() ? run.overflow : at::zeros_like(run.found_inf)});
  sent_names_.clear();
  if (run.scaled_norms.defined()) {
    for (const auto& parameter : run.parameters) {
      const auto& gradient = parameter.owned.grad();
      if (gradient.defined() && gradient.numel() > 0) sent_names_.push_back(parameter.name);
    }
    numbers = at::cat({numbers, run.scaled_norms.isfinite().logical_not().to(numbers.scalar_type())});
  }
  sent_.send(numbers);
}

std::optional<Fate> Fates::last() {
  const auto numbers = sent_.receive();
  if (!numbers) return last_;
  std::vector<std::string> names;
  for (std::size_t i = 0; i < sent_names_.size() && i + 2 < numbers->size(); ++i) {
    if ((*numbers)[i + 2] != 0) names.push_back(sent_names_[i]);
  }
  last_ = Fate{numbers->at(0) != 0, numbers->at(1) != 0, some_of(names)};
  return last_;
}

void Fates::tell(Run& run, std::int64_t step, const Fate& fate) {
  std::vector<std::pair<std::string, Notice::Detail>> details{{"step", step}};
  const bool is_veto = !fate.has_overflowed && fate.gradients.empty();
  details.emplace_back("reason", std::string(is_veto ? "vetoed" : "gradients not finite"));
  if (!fate.gradients.empty()) details.emplace_back("gradients", fate.gradients);
  run.notice("step_skipped", std::move(details));
}

void Fates::forget() {
  sent_ = {};
  last_.reset();
}

void Fates::save(State& state) {
  if (!last()) return;
  state.put("skipped", static_cast<std::int64_t>(last_->is_skipped));
  state.put("overflowed", static_cast<std::int64_t>(last_->has_overflowed));
  state.put("not_finite", last_->gradients);
}

// Older snapshots have the first alone, and took each skip for an overflow.
void Fates::load(const State& state) {
  forget();
  if (!state.has("skipped")) return;
  const bool is_skipped = state.integer("skipped") != 0;
  last_ = Fate{is_skipped, is_skipped, ""};
  if (!state.has("overflowed")) return;
  last_->has_overflowed = state.integer("overflowed") != 0;
  last_->gradients = state.text("not_finite");
}

}  // namespace vernier
