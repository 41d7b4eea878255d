// Goes back within a step: to a Stage, on the side or for good. Nothing else does.
#pragma once

#include <vernier/host.h>

#include <functional>
#include <set>
#include <vector>

#include "savepoint.h"
#include "wiring/wiring.h"

namespace vernier {

// Moments of a step at which the run can be copied: before StepBegin; when the batch is there.
enum class Stage { begin, batch };

// Main thread only. Control says what plugins may ask for.
class Transaction {
 public:
  explicit Transaction(Wiring& wiring) : wiring_(wiring) {}
  void undo_failed_steps(bool undo) { undoes_failed_steps_ = undo; }  // else mark(Stage::begin) takes no copy
  void take_no_copies();                                              // from now on, whoever wants them: for a replay
  void rewire() { is_wired_ = false; }                                // after other masters
  void rewire_plugins();                                              // after other plugins

  void mark(Stage stage, TrainerRun& run);  // takes the copy that somebody wants at this stage
  void gradients_computed(const Run& run);  // before listeners change them
  void commit();                            // before the update: forgets the step's copies, since weights change now

  void want_rerun(const Plugin& requester);
  bool is_rerun_wanted() const { return !requesters_.empty(); }
  bool can_undo() const { return points_[index(Stage::begin)].is_taken(); }  // a step that fails
  void roll_back(Stage stage, TrainerRun& run);                              // restores the run
  // Runs body, which changes weights and buffers, and puts those back. The step can be undone as before.
  torch::Tensor put_back_after(const TrainerRun& run, const std::function<torch::Tensor()>& body);
  // Control::rerun. body: computes the gradients, with what the caller does around it.
  bool rerun(TrainerRun& run, const std::function<void()>& body);

 private:
  enum class Phase { between, begun, computed };
  static std::size_t index(Stage stage) { return static_cast<std::size_t>(stage); }
  Savepoint& point(Stage stage) { return points_[index(stage)]; }
  void wire(const Run& run);
  void take(Stage stage, const TrainerRun& run);
  std::vector<Plugin*> plugins_at(Stage stage) const;

  Wiring& wiring_;
  bool undoes_failed_steps_ = true, is_wired_ = false, has_warned_ = false;
  Phase phase_ = Phase::between;
  Savepoint points_[2];
  Scope scopes_[2];
  std::vector<Parameter> parameters_;   // run.parameters, which roll_back() restores
  std::set<const Plugin*> requesters_;  // plugins that called want_rerun()
  std::vector<std::int64_t> versions_;  // versions of the gradients when they were computed
};

}  // namespace vernier
