// Follows the bytes of some steps of a run, for plugins that report them. A step that a profiler or another ledger
// follows already is left out.
#pragma once

#include <vernier/memory_ledger.h>
#include <vernier/sdk.h>

#include <functional>
#include <optional>
#include <utility>
#include <vector>

namespace vernier {

// The optimizer's bytes are those that its first step allocates, so a resumed run does not know them. The first step
// and the measured ones are slower; the others are not.
class StepLedger {
 public:
  // In Plugin::attach. is_due: whether this step, run.step + 1, is measured.
  void attach(Bus& bus, const std::function<bool(const Run&)>& is_due) {
    bus.on(Event::BatchReady, [this, is_due](const Run& run) {
      if (!is_due(run) || updates_) return;
      if (!ledger_ && !open(run)) return;
      ledger_->begin_forward();
    });
    bus.on(Event::LossReady, [this](const Run&) {
      if (ledger_ && !updates_) ledger_->begin_backward();
    });
    bus.on(Event::GradientsReady, [this, is_due](const Run& run) {
      if (!is_due(run) && run.step > 0) return;
      if (!ledger_ && !open(run)) return;
      ledger_->begin_update();
      updates_ = true;  // an optimizer may run the micro-batches once more: that is its memory
    });
    bus.on(Event::RunFailed, [this](const Run&) { ledger_.reset(); });
  }

  // At StepEnd, in each step. Nothing where the step was not followed; the first one is, whether it is due or not.
  std::optional<MemoryUse> end() {
    if (!ledger_) return std::nullopt;
    auto use = ledger_->stop();
    ledger_.reset();
    updates_ = false;
    optimizer_ = use.bytes("optimizer");
    return use;
  }

 private:
  bool open(const Run& run) {
    if (!MemoryLedger::can_follow()) return false;
    std::vector<torch::Tensor> masters;
    for (const auto& parameter : run.parameters) masters.push_back(parameter.master);
    ledger_.emplace(*run.model, std::move(masters));
    ledger_->hold("batch", run.micro_batch.tensors);
    ledger_->hold("optimizer", optimizer_);
    return true;
  }

  std::optional<MemoryLedger> ledger_;
  std::int64_t optimizer_ = 0;  // bytes that its first step left
  bool updates_ = false;        // the gradients of the step in the ledger are ready
};

}  // namespace vernier
