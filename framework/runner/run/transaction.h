// The one place that goes back within a step: to a Stage, on the side or for good.
#pragma once

#include <exception>
#include <functional>
#include <set>
#include <vector>

#include "savepoint.h"
#include "wiring/wiring.h"

namespace vernier {

// Main thread only. Stage and what plugins may ask for: Control.
class Transaction {
 public:
  explicit Transaction(Wiring& wiring) : wiring_(wiring) {}
  void undo_failed_steps(bool undo) { undoes_failed_steps_ = undo; }  // else mark(Stage::begin) takes no copy
  void take_no_copies();                                              // from now on, whoever wants them: for a replay
  void rewire() { is_wired_ = false; }                                // after other plugins, or other masters

  void mark(Stage stage, Run& run);         // takes the copies that somebody wants at this stage
  void gradients_computed(const Run& run);  // before listeners change them
  // Once after each update: true where it was rolled back; run.skip_update is set then. Throws what restoring threw.
  bool rolled_back();
  void commit();  // forgets the step's copies

  void want(Stage stage, const Plugin& asker);
  bool is_wanted(Stage stage) const { return !askers_[index(stage)].empty(); }
  bool can_undo() const { return points_[index(Stage::begin)].is_taken(); }  // a step that fails
  // Restores the run. Stage::gradients: false where no copy could be taken.
  bool roll_back(Stage stage, Run& run);
  // Runs body, which changes weights and buffers, and puts those back. The step can be undone as before.
  torch::Tensor put_back_after(const Run& run, const std::function<torch::Tensor()>& body);
  // Control::rerun. body: the part of the step that follows the stage, with what the caller does around it.
  bool rerun(Stage from, Run& run, const std::function<void()>& body);

 private:
  enum class Phase { between, begun, computed, updating, rolled_back };
  static std::size_t index(Stage stage) { return static_cast<std::size_t>(stage); }
  Savepoint& point(Stage stage) { return points_[index(stage)]; }
  void wire(const Run& run);
  void take(Stage stage, const Run& run);
  void take_if_it_fits(Stage stage, const Run& run, const char* or_else);
  std::vector<Plugin*> plugins_at(Stage stage) const;
  void restore_for_good(Run& run);
  bool rerun_update(Run& run, const std::function<void()>& body);
  static std::vector<std::int64_t> versions_of_gradients(const Run& run);

  Wiring& wiring_;
  bool undoes_failed_steps_ = true, is_wired_ = false;
  bool has_warned_[3] = {};
  Phase phase_ = Phase::between;
  Savepoint points_[3];
  Scope scopes_[3];
  std::vector<Parameter> parameters_;  // the list as it is to be
  std::set<const Plugin*> askers_[3];
  std::vector<std::int64_t> versions_;  // of the gradients, when they were computed
  bool were_untouched_ = false;         // since then, when the update began
  torch::Tensor skip_before_;           // run.skip_update before the roll-back
  std::exception_ptr broken_;           // what restoring the update threw
};

}  // namespace vernier
