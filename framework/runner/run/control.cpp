#include "control.h"

#include <c10/util/ScopeExit.h>
#include <vernier/error.h>

namespace vernier {

void TrainerControl::swap(const Table& roles) {
  for (const auto& [role, table] : roles) trainer_.requests_.swap.insert_or_assign(role, table);
}

void TrainerControl::try_swap(const Table& roles) {
  vernier::try_swap(trainer_.wiring_, roles);
}

void TrainerControl::keep_savepoints(std::int64_t every, std::int64_t keep) {
  trainer_.snapshots_.keep(every, keep);
}

void TrainerControl::rewind(Plugin& asker, std::int64_t back, std::int64_t drop, const std::string& also) {
  if (trainer_.snapshots_.empty()) throw Error("nothing is kept to go back to: call keep_savepoints in prepare");
  auto& requests = trainer_.requests_;
  requests.rewinder = &asker;
  requests.back = back;
  requests.drop = drop;
  requests.also = also;
}

void TrainerControl::fail(const Plugin& asker, const std::string& why) {
  trainer_.requests_.failing = &asker;
  trainer_.requests_.why = why;
}

void TrainerControl::finish(const Plugin& asker, const std::string& why) {
  trainer_.finished_ = asker.id() + ": " + why;
  if (trainer_.in_step_) run_.validates = true;
}

std::vector<State> TrainerControl::gather(const State& of_this_rank) {
  if (ranks() == 1) return {of_this_rank};
  std::vector<State> all;
  for (const auto& bytes : trainer_.wiring_.distributed->gather(to_bytes(of_this_rank)))
    all.push_back(from_bytes(bytes));
  return all;
}

void TrainerControl::between_steps(const Plugin& asker, std::function<bool(BetweenSteps&)> look) {
  trainer_.between_steps_.emplace_back(&asker, std::move(look));
}

State TrainerControl::snapshot() {
  return trainer_.snapshot(run_);
}

torch::Tensor TrainerControl::recompute() {
  return trainer_.recompute(run_);
}

torch::Tensor TrainerControl::recompute_at(const std::function<void()>& move) {
  return trainer_.transaction_.put_back_after(run_, [&] {
    {
      const torch::NoGradGuard no_grad;
      move();
    }
    return trainer_.recompute(run_);
  });
}

void TrainerControl::want(Stage stage, const Plugin& asker) {
  trainer_.transaction_.want(stage, asker);
}

bool TrainerControl::rerun(Stage from, const std::function<void()>& begin, const std::function<void()>& end) {
  const auto* caller = trainer_.called_;
  const bool is_untouched = trainer_.transaction_.rerun(from, run_, [&] {
    begin();
    {
      trainer_.bus_.mute_monitors(true);
      const auto unmute = c10::make_scope_exit([this] { trainer_.bus_.mute_monitors(false); });
      trainer_.compute_gradients(run_, TrainingLoop::Tries::once);
    }
    end();
  });
  trainer_.called_ = caller;
  return is_untouched;
}

}  // namespace vernier
