// Actions of plugins between two steps, for Control::between_steps.
#include <c10/util/ScopeExit.h>

#include <vernier/error.h>

#include "training_loop.h"

namespace vernier {

// Acts at once for a plugin that looks between two steps.
class TrainerBetweenSteps final : public BetweenSteps {
 public:
  TrainerBetweenSteps(TrainingLoop& trainer, Run& run, const Plugin* asker)
      : trainer_(trainer), run_(run), asker_(asker) {}

  void swap(const Table& roles) override {
    called([&] { trainer_.swap(run_, roles); });
  }
  std::optional<double> validate() override {
    auto& known = trainer_.outcome_.validation_loss;
    const auto before = std::exchange(known, std::nullopt);
    called([&] {
      trainer_.validation_due_ = true;  // stays so where a signal cuts it short: it is repeated on resume
      if (trainer_.validate(run_)) trainer_.validation_due_ = false;
      trainer_.saved_step_ = -1;  // what is saved there lacks the validation
    });
    const auto loss = known;
    if (!loss) known = before;
    return loss;
  }
  std::string save() override {
    called([&] { trainer_.save_finite(run_); });
    return trainer_.wiring_.checkpoint->id();
  }
  void set_every(const std::string& monitor, std::int64_t steps) override {
    bool is_there = false, is_set = false;
    called([&] {
      for (const auto& each : trainer_.wiring_.monitors) {
        if (each->id() != "monitor/" + monitor) continue;
        is_there = true;
        trainer_.called_ = each.get();
        is_set = each->set_every(steps) || is_set;
      }
    });
    if (!is_there) throw Error("the run has no monitor/" + monitor);
    if (!is_set) throw Error("monitor/" + monitor + " has no interval in steps");
  }

 private:
  void called(const std::function<void()>& body) const {
    const auto back = c10::make_scope_exit([this] { trainer_.called_ = asker_; });
    body();
  }

  TrainingLoop& trainer_;
  Run& run_;
  const Plugin* asker_;
};

// Each asker in turn, until none of them asks to be called again.
void TrainingLoop::let_look(Run& run) {
  for (bool is_waiting = !between_steps_.empty(); is_waiting && !is_over(run) && !is_out_of_time();) {
    is_waiting = false;
    for (const auto& [asker, look] : between_steps_) {
      called_ = asker;
      TrainerBetweenSteps between(*this, run, asker);
      is_waiting = look(between) || is_waiting;
      if (!finished_.empty()) saved_step_ = -1;                  // what is saved there goes on
      if (!requests_.swap.empty()) requests_.failing = nullptr;  // both from a validation
      fail_if_asked();
      swap_what_is_asked(run);
      if (is_over(run)) return;
    }
  }
}

}  // namespace vernier
