#include "requests.h"

#include "wiring/config.h"

namespace vernier {

void Requests::swap(const Table& roles, const std::string& asker) {
  swap_.asker = asker;
  for (const auto& [role, table] : roles) swap_.roles.insert_or_assign(role, table);
}

Requests::Rewind Requests::take_rewind() {
  auto rewind = *std::move(rewind_);
  rewind_.reset();
  swap_ = {};
  failure_.reset();
  return rewind;
}

void Requests::cancel_failure_if_swapped() {
  if (wants_swap()) failure_.reset();
}

std::optional<Requests::Failure> Requests::take_failure() {
  if (failure_) finished_.clear();
  return std::exchange(failure_, std::nullopt);
}

void Requests::drop() {
  swap_ = {};
  rewind_.reset();
  failure_.reset();
  finished_.clear();
}

void Requests::save(State& state, const Run& run) const {
  if (wants_swap()) state.put("asked", to_toml(swap_.roles));
  if (finished_.empty()) return;
  state.put("finished", finished_);
  state.put("finished_of", run.steps);
}

void Requests::load(const State& state, const Run& run) {
  const bool is_finished = state.has("finished") && state.integer("finished_of") >= run.steps;
  finished_ = is_finished ? state.text("finished") : "";
}

}  // namespace vernier
