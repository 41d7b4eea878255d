#include "between_steps.h"

#include "wiring/swap.h"

namespace vernier {

// Acts at once for a plugin that looks between two steps.
class RequestHandler::Look final : public BetweenSteps {
 public:
  Look(RequestHandler& handler, TrainerRun& run, const Plugin* requester)
      : by_(handler), run_(run), requester_(requester) {}

  void swap(const Table& roles) override {
    called([&] { by_.swap(run_, roles, requester_->id()); });
  }
  std::optional<double> validate() override {
    std::optional<double> loss;
    called([&] {
      loss = by_.validation_.loss_now(run_);
      by_.saving_.outdate();
      const bool goes_on = run_.step > 0 && by_.requests_.finished().empty();  // else the end saves it
      if (goes_on && by_.roles_.checkpoint->due(run_)) by_.saving_.save_unless_spoiled(run_);
    });
    return loss;
  }
  std::string save() override {
    called([&] { by_.saving_.save_finite(run_); });
    return by_.roles_.wiring.checkpoint->id();
  }
  void set_every(const std::string& monitor, std::int64_t steps) override {
    bool is_there = false, is_set = false;
    called([&] {
      for (const auto& each : by_.roles_.wiring.monitors) {
        if (each->id() != "monitor/" + monitor) continue;
        is_there = true;
        by_.roles_.calls.note(each.get());
        is_set = each->set_every(steps) || is_set;
      }
    });
    if (!is_there) throw Error("the run has no monitor/" + monitor);
    if (!is_set) throw Error("monitor/" + monitor + " has no interval in steps");
  }

 private:
  // Afterwards the requester's code runs again, even if body throws: the requester may catch that.
  void called(const std::function<void()>& body) const {
    const auto back = c10::make_scope_exit([this] { by_.roles_.calls.note(requester_); });
    body();
  }

  RequestHandler& by_;
  TrainerRun& run_;
  const Plugin* requester_;
};

void RequestHandler::swap(TrainerRun& run, const Table& roles, const std::string& requester) {
  roles_.calls.note(nullptr);  // the plugin that was called last may be gone afterwards
  try {
    vernier::swap(roles_.wiring, run, roles);
  } catch (...) {
    const auto [text, kind] = caught();
    const auto by = requester.empty() ? "" : "; " + requester + " requested it";
    std::throw_with_nested(Error(c10::str(text, "; nothing was swapped after step ", run.step, by), kind));
  }
  saving_.note_swap(run);
}

void RequestHandler::swap_if_asked(TrainerRun& run) {
  if (!requests_.wants_swap()) return;
  const auto asked = requests_.take_swap();
  swap(run, asked.roles, asked.requester);
}

void RequestHandler::fail_if_asked() {
  const auto asked = requests_.take_failure();
  if (!asked) return;
  roles_.calls.note(asked->requester);
  throw Error(asked->why);
}

void RequestHandler::let_look(TrainerRun& run) {
  const auto& looks = requests_.looks();
  for (bool is_waiting = !looks.empty(); is_waiting && !ending_.is_over(run) && !ending_.is_out_of_time();) {
    is_waiting = false;
    for (const auto& [requester, look] : looks) {
      roles_.calls.note(requester);
      Look now(*this, run, requester);
      is_waiting = look(now) || is_waiting;
      agree(run);
      if (requests_.wants_rewind()) saving_.rewind(run);
      if (!requests_.finished().empty()) saving_.outdate();
      requests_.cancel_failure_if_swapped();
      fail_if_asked();
      swap_if_asked(run);
      if (ending_.is_over(run)) return;
    }
  }
}

}  // namespace vernier
