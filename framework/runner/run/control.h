// Requests of plugins to the trainer: carried out at once, or kept in Requests until the step is over.
#pragma once

#include <vernier/control.h>

#include <thread>

#include "saving.h"
#include "step.h"

namespace vernier {

class TrainerControl final : public Control, public TrainerAverages {
 public:
  TrainerControl(Roles& roles, Step& step, Validation& validation, Saving& saving, SnapshotRing& snapshots,
                 Requests& requests, TrainerRun& run)
      : TrainerAverages(roles, validation),
        roles_(roles),
        step_(step),
        saving_(saving),
        snapshots_(snapshots),
        requests_(requests),
        run_(run) {}
  void swap(const Table& roles) override;
  void try_swap(const Table& roles) override;
  void keep_savepoints(std::int64_t every, std::int64_t keep) override;
  void rewind(Plugin& requester, std::int64_t back, std::int64_t drop, const std::string& also) override;
  void fail(const Plugin& requester, const std::string& why) override;
  void finish(const Plugin& requester, const std::string& why) override;
  bool finishes() const override { return !requests_.finished().empty(); }
  std::int64_t rank() const override { return roles_.wiring.distributed->rank(); }
  std::int64_t ranks() const override { return roles_.wiring.distributed->ranks(); }
  std::vector<State> gather(const State& of_this_rank) override;
  void between_steps(const Plugin& requester, std::function<bool(BetweenSteps&)> look) override;
  State snapshot() override;
  torch::Tensor recompute() override;
  torch::Tensor recompute_at(const std::function<void()>& move) override;
  void want_rerun(const Plugin& requester) override;
  bool rerun(const std::function<void()>& begin, const std::function<void()>& end) override;

 private:
  void note(const char* request, const Plugin* requester, const std::string& why = "");
  // Throws Error on another thread than the trainer's.
  void require_thread(const char* function) const;
  // Throws Error unless it is this moment. when: the moment in words.
  void require(RunFacts::Moment moment, const char* function, const char* when) const;

  Roles& roles_;
  Step& step_;
  Saving& saving_;
  SnapshotRing& snapshots_;
  Requests& requests_;
  TrainerRun& run_;
  std::thread::id thread_ = std::this_thread::get_id();
};

}  // namespace vernier
