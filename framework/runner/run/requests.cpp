#include "requests.h"

#include "common/config/config.h"

namespace vernier {

void Requests::swap(const Table& roles, const std::string& requester) {
  pending_.swap.requester = requester;
  for (const auto& [role, table] : roles) pending_.swap.roles.insert_or_assign(role, table);
}

std::optional<Requests::Failure> Requests::take_failure() {
  if (pending_.failure) finished_.clear();
  return std::exchange(pending_.failure, std::nullopt);
}

void Requests::save(State& state, const Run& run) const {
  if (wants_swap()) state.put("asked", to_toml(pending_.swap.roles));
  if (finished_.empty()) return;
  state.put("finished", finished_);
  state.put("finished_of", run.steps);
}

void Requests::load(const State& state, const Run& run) {
  const bool is_finished = state.has("finished") && state.integer("finished_of") >= run.steps;
  finished_ = is_finished ? state.text("finished") : "";
}

}  // namespace vernier
