#include "between_steps.h"

#include <c10/util/ScopeExit.h>
#include <vernier/error.h>

#include <optional>
#include <utility>

namespace vernier {

namespace {

// Acts at once for a plugin that looks between two steps.
class TrainerBetweenSteps final : public BetweenSteps {
 public:
  TrainerBetweenSteps(Parts& parts, RequestHandler& handler, Validation& validation, Saving& saving, TrainerRun& run,
                      const Plugin* asker)
      : parts_(parts), handler_(handler), validation_(validation), saving_(saving), run_(run), asker_(asker) {}

  void swap(const Table& roles) override {
    called([&] { handler_.swap(run_, roles, asker_->id()); });
  }
  std::optional<double> validate() override {
    auto& known = parts_.outcome.validation_loss;
    const auto before = std::exchange(known, std::nullopt);
    called([&] {
      parts_.progress.validation_due = true;  // stays so if a signal cuts it short: it is repeated on resume
      if (validation_.validate(run_)) parts_.progress.validation_due = false;
      saving_.outdate();
    });
    const auto loss = known;
    if (!loss) known = before;
    return loss;
  }
  std::string save() override {
    called([&] { saving_.save_finite(run_); });
    return parts_.wiring.checkpoint->id();
  }
  void set_every(const std::string& monitor, std::int64_t steps) override {
    bool is_there = false, is_set = false;
    called([&] {
      for (const auto& each : parts_.wiring.monitors) {
        if (each->id() != "monitor/" + monitor) continue;
        is_there = true;
        parts_.calls.note(each.get());
        is_set = each->set_every(steps) || is_set;
      }
    });
    if (!is_there) throw Error("the run has no monitor/" + monitor);
    if (!is_set) throw Error("monitor/" + monitor + " has no interval in steps");
  }

 private:
  // Afterwards the asker's code runs again, even if body throws: the asker may catch that.
  void called(const std::function<void()>& body) const {
    const auto back = c10::make_scope_exit([this] { parts_.calls.note(asker_); });
    body();
  }

  Parts& parts_;
  RequestHandler& handler_;
  Validation& validation_;
  Saving& saving_;
  TrainerRun& run_;
  const Plugin* asker_;
};

}  // namespace

void RequestHandler::swap(TrainerRun& run, const Table& roles, const std::string& asker) {
  parts_.calls.note(nullptr);  // the plugin that was called last may be gone afterwards
  try {
    vernier::swap(parts_.wiring, run, parts_.built, roles);
  } catch (...) {
    const auto [text, kind] = caught();
    const auto by = asker.empty() ? "" : ", where " + asker + " asked for it";
    std::throw_with_nested(Error(c10::str(text, "; nothing was swapped after step ", run.step, by), kind));
  }
  parts_.ranks.refuse_masters_of_others(run);
  parts_.ranks.share_weights(run, Ranks::Weights::all);  // the old precision has rounded those of other ranks
  parts_.snapshots.clear();
  parts_.transaction.rewire_plugins();
  step_.note_listeners();
  saving_.outdate();
}

void RequestHandler::agree(const Run& run) {
  if (const auto asked = std::exchange(parts_.requests.asked, ""); !asked.empty()) parts_.agree(run, asked);
}

void RequestHandler::swap_if_asked(TrainerRun& run) {
  auto& pending = parts_.requests.pending;
  if (!pending.swap.empty()) swap(run, std::exchange(pending.swap, {}), std::exchange(pending.swapper, ""));
}

void RequestHandler::cancel_failure_if_swapped() {
  auto& pending = parts_.requests.pending;
  if (!pending.swap.empty()) pending.failing = nullptr;
}

void RequestHandler::fail_if_asked() {
  auto& pending = parts_.requests.pending;
  if (pending.failing == nullptr) return;
  parts_.calls.note(std::exchange(pending.failing, nullptr));
  parts_.requests.finished.clear();
  throw Error(pending.why);
}

void RequestHandler::let_look(TrainerRun& run) {
  const auto& looks = parts_.requests.looks;
  for (bool is_waiting = !looks.empty(); is_waiting && !parts_.is_over(run) && !parts_.is_out_of_time();) {
    is_waiting = false;
    for (const auto& [asker, look] : looks) {
      parts_.calls.note(asker);
      TrainerBetweenSteps between(parts_, *this, validation_, saving_, run, asker);
      is_waiting = look(between) || is_waiting;
      agree(run);
      if (!parts_.requests.finished.empty()) saving_.outdate();
      cancel_failure_if_swapped();
      fail_if_asked();
      swap_if_asked(run);
      if (parts_.is_over(run)) return;
    }
  }
}

}  // namespace vernier
