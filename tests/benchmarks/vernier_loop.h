// Vernier's side of a benchmark: the real plugins from their shared libraries, wired by the real host.
#pragma once

#include <vernier/host.h>
#include <vernier/roles.h>

#include <atomic>
#include <memory>
#include <string>
#include <vector>

#include "common/config/config.h"
#include "run/training_loop.h"
#include "wiring/wiring.h"

// The small GPT of the benchmarks: blocks of 128, windows of 128 bytes of this project's sources.
inline std::vector<std::string> gpt_configuration(int layers, int batch_size,
                                                  const std::vector<std::string>& more = {}) {
  std::vector<std::string> sets = {"task.use=gpt",
                                   "task.data=[\"" VERNIER_SOURCE_DIR "/framework\", \"" VERNIER_SOURCE_DIR "/sdk\"]",
                                   "task.layers=" + std::to_string(layers),
                                   "task.heads=4",
                                   "task.width=128",
                                   "task.context=128",
                                   "task.batch_size=" + std::to_string(batch_size),
                                   "optimizer.use=adamw"};
  sets.insert(sets.end(), more.begin(), more.end());
  return sets;
}

class VernierLoop {
 public:
  explicit VernierLoop(const std::vector<std::string>& sets, bool undo_failed_steps = true, bool is_compiled = false)
      : wiring_(vernier::wire(vernier::load_config({}, sets), vernier::Host({VERNIER_BINARY_DIR "/plugins"}))),
        trainer_(*wiring_, /*validate_every=*/0, stop_) {
    run_.steps = 1'000'000'000;
    trainer_.step().transaction().undo_failed_steps(undo_failed_steps);
    if (is_compiled) {
      trainer_.step().record_with(vernier::recorded_passes(vernier::compiled_graphs(), vernier::Recordings::faster));
    }
    trainer_.prepare(run_, /*epochs=*/0);
  }

  void step() {
    trainer_.step().step(run_);
    run_.notices.clear();
    run_.step += 1;
  }
  // Forward and backward of the last batch again, through all roles.
  void gradients() { trainer_.step().compute_gradients(run_, vernier::Step::Tries::smaller); }
  // With what comes after each step, such as a swap.
  void train(int steps) {
    for (int i = 0; i < steps; ++i) trainer_.train_step(run_);
  }
  vernier::TrainerRun& run() { return run_; }
  vernier::Bus& bus() { return wiring_->bus; }
  std::int64_t optimizer_bytes() const {
    std::int64_t bytes = 0;
    for (const auto& [name, tensor] : wiring_->optimizer->save().tensors) {
      bytes += static_cast<std::int64_t>(tensor.nbytes());
    }
    return bytes;
  }

 private:
  std::atomic<int> stop_ = 0;
  std::unique_ptr<vernier::Wiring> wiring_;
  vernier::TrainerRun run_;
  vernier::TrainingLoop trainer_;
};
